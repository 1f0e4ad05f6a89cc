# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint, handed out once each and checked."""

from __future__ import annotations

import torch
from torch import Tensor

from treeattn.decoder.linear import Linear


class Weights:
    """Named tensors, each taken once and checked."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"the checkpoint has no tensor {name}")
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
        return tensor.to(self._device)

    def take_optional(self, name: str, *shape: int) -> Tensor | None:
        return self.take(name, *shape) if name in self._tensors else None

    def linear(self, prefix: str, rows: dict[str, int], in_features: int) -> Linear:
        """The projections `rows` (name to output rows), joined into one product."""
        names = [prefix + name for name in rows]
        weights = [
            self.take(f"{name}.weight", count, in_features)
            for name, count in zip(names, rows.values(), strict=True)
        ]
        biases = [
            self.take_optional(f"{name}.bias", count)
            for name, count in zip(names, rows.values(), strict=True)
        ]
        present = [bias for bias in biases if bias is not None]
        if present and len(present) < len(biases):
            raise ValueError(f"{', '.join(names)}: all must have a bias, or none")
        return Linear(torch.cat(weights), torch.cat(present) if present else None)

    def check_all_taken(self) -> None:
        left = [name for name in self._tensors if not name.endswith("rotary_emb.inv_freq")]
        if left:
            raise ValueError(f"tensor {left[0]} is not supported by this decoder")
