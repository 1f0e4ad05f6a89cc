# SPDX-License-Identifier: Apache-2.0
"""Attention shapes of the models that the suite measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Model:
    name: str
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int

    @property
    def group(self) -> int:
        return self.num_qo_heads // self.num_kv_heads

    @property
    def label(self) -> str:
        return f"{self.num_qo_heads}/{self.num_kv_heads} d{self.head_dim}"


SMOLLM2 = Model("SmolLM2-135M", 9, 3, 64, 30)
LLAMA3_8B = Model("Llama-3-8B", 32, 8, 128, 32)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
