# SPDX-License-Identifier: Apache-2.0
"""A linear layer with weights packed once for oneDNN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Fewest rows a packed product is run with. Measured with oneDNN 3 (AVX-512, fp32 and bf16): from 2
# rows on a row's bits do not depend on the number of rows, so a verify step reproduces plain
# decoding bit for bit; and 4 rows take less time than 1, 2 or 3.
MIN_ROWS = 4


def pad_rows(x: Tensor) -> Tensor:
    """`x` [N, K] with zero rows appended up to MIN_ROWS; an empty `x` stays empty."""
    missing = MIN_ROWS - x.shape[0]
    return x if missing <= 0 or missing == MIN_ROWS else F.pad(x, (0, 0, 0, missing))


def can_pack(weight: Tensor) -> bool:
    """Whether this torch can pack `weight` for oneDNN and run it at full speed."""
    if not (weight.is_cpu and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    ops = torch.ops.mkldnn
    if not (hasattr(ops, "_linear_pointwise") and hasattr(ops, "_reorder_linear_weight")):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(ops._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class Linear:
    """y = x W^T + b for x [N, in_features], weights held in one copy.

    Packed where `can_pack` allows, plain `F.linear` otherwise.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.packed = can_pack(weight)
        self.bias = bias
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MIN_ROWS)
        else:
            self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        if not self.packed:
            return F.linear(x, self.weight, self.bias)
        if x.shape[0] == 0:
            return x.new_empty(0, self.weight.shape[0])
        linear = torch.ops.mkldnn._linear_pointwise
        padded = pad_rows(x)
        y: Tensor = linear(padded, self.weight, self.bias, "none", [], "")
        return y if padded is x else y[: x.shape[0]]
