# SPDX-License-Identifier: Apache-2.0
"""`treeattn show`: draw a draft tree."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from treeattn import draw

_EPILOG = """\
The JSON file (or - for standard input) holds one object; only "parents" is required:
  {"parents": [-1, 0, 0, 1],          parent of each node, -1 for the root, parents[i] < i
   "labels":  [" The", " cat", " dog", " sat"],   text of each node
   "tokens":  [504, 2644, 2767, 3578],            ids, shown where there are no labels
   "scores":  [0, -0.2, -1.9, -0.5],              log probability of the path to each node
   "accepted": [0, 1, 3], "bonus": " on",         what the target took, root first, and added
   "title": "step 3"}

examples:
  treeattn show --paths "the cat sat" "the cat ran" "the dog"
  treeattn show tree.json --svg tree.svg
"""


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "show",
        help="draw a draft tree in the terminal or as SVG",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", help="a JSON file, or - for standard input")
    source.add_argument("--paths", nargs="+", metavar="PATH", help="paths of words from the root")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write an SVG file instead")
    parser.set_defaults(run=run)


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
