# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (rotate-half form)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from treeattn.decoder.config import Llama3Scaling, ModelConfig


class Rotary:
    """Tables of cos and sin by position, [max_position, head_dim].

    The first half of `sin` is negated, so that a rotation is `x * cos + roll(x, D / 2) * sin`.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        frequencies = inverse_frequencies(config)
        positions = torch.arange(config.max_position, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)  # [max_position, D / 2]
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), -1).to(device, dtype)
        self._sin = torch.cat((-sin, sin), -1).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin at `positions` [N], each [N, 1, head_dim] to broadcast over heads."""
        cos = self._cos.index_select(0, positions)
        return cos[:, None], self._sin.index_select(0, positions)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [N, heads, head_dim] by the angles of `Rotary.at`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Angle per position of each pair, [head_dim / 2] fp32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is None:
        return frequencies
    return _scale_llama3(frequencies, config.rope_scaling)


def _scale_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide low frequencies by `factor`, keep high ones, blend in between."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)
