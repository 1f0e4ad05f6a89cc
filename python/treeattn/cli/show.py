# SPDX-License-Identifier: Apache-2.0
"""`treeattn show`: draw a draft tree."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from treeattn import draw


def run(args: argparse.Namespace) -> int:
    """Draw the tree that the arguments name."""
    picture = draw.from_paths(args.paths) if args.paths else draw.from_json(_read(args.file))
    if args.svg is None:
        draw.print_tree(picture)
    else:
        args.svg.write_text(draw.to_svg(picture), encoding="utf-8")
    return 0


def _read(name: str) -> Any:
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        source = "standard input" if name == "-" else name
        raise ValueError(f"{source} must hold JSON: {error}") from error
