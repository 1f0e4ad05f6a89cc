# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: a GGUF file, or a folder with config.json and safetensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treeattn.decoder.config import ModelConfig, config_from_json
from treeattn.decoder.extras import require
from treeattn.decoder.gguf import read_gguf
from treeattn.decoder.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded checkpoint; `tokenizer` is None when the folder has no tokenizer.json."""

    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None


def load_checkpoint(path: str | Path, dtype: torch.dtype) -> Checkpoint:
    """Load a `.gguf` file, or a folder in the layout of the Hugging Face hub.

    Raises FileNotFoundError, or ValueError naming what is not supported.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".gguf":
        config, weights, fields = read_gguf(path, dtype)
        return Checkpoint(config, weights, Tokenizer.from_gguf(fields))
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} is neither a .gguf file nor a folder with config.json")
    generation = path / "generation_config.json"
    config = config_from_json(
        read_json(path / "config.json"), read_json(generation) if generation.is_file() else {}
    )
    has_tokenizer = (path / "tokenizer.json").is_file()
    tokenizer = Tokenizer.from_folder(path) if has_tokenizer else None
    return Checkpoint(config, read_safetensors(path, dtype), tokenizer)


def read_safetensors(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a folder by name; floating-point ones cast to `dtype`."""
    safetensors = require("safetensors.torch", extra="hf")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(read_json(index)["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    weights: dict[str, Tensor] = {}
    for name in files:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing")
        tensors = safetensors.load_file(folder / name)
        weights |= {
            key: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for key, tensor in tensors.items()
        }
    return weights


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
