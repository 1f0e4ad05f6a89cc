# SPDX-License-Identifier: Apache-2.0
"""The time below which no kernel can go: visible operations at the peak rate, or bytes."""

from __future__ import annotations

from dataclasses import dataclass

from bench import trees
from bench.models import DTYPES, Model


@dataclass(frozen=True)
class Rates:
    """The measured ceilings of one instruction set on some number of threads."""

    fp32_gflops: float
    bf16_gflops: float  # of the bf16 dot product; the fp32 rate where the CPU has none
    read_gbs: float

    def gflops(self, dtype: str) -> float:
        return self.bf16_gflops if dtype == "bf16" else self.fp32_gflops


@dataclass(frozen=True)
class Floor:
    flops: float
    bytes: float
    us: float
    bound: str  # "flops" or "bytes"


def of(flops: float, num_bytes: float, gflops: float, read_gbs: float) -> Floor:
    compute, memory = flops / gflops / 1e3, num_bytes / read_gbs / 1e3
    return Floor(flops, num_bytes, max(compute, memory), "flops" if compute >= memory else "bytes")


def attention(model: Model, ctx: int, parents: list[int], dtype: str, rates: Rates) -> Floor:
    """What the tree sees: two multiply-adds per visible key and head dimension; q and out once,
    K and V once."""
    nodes = len(parents)
    visible = nodes * ctx + trees.visible_pairs(parents)
    flops = 4.0 * model.head_dim * model.num_qo_heads * visible
    rows = 2 * (ctx + nodes) * model.num_kv_heads + 2 * nodes * model.num_qo_heads
    num_bytes = float(rows * model.head_dim * DTYPES[dtype].itemsize)
    return of(flops, num_bytes, rates.gflops(dtype), rates.read_gbs)


def traffic(num_bytes: float, rates: Rates) -> Floor:
    """Where bytes are all that counts: logits read once, or rows moved (read and written)."""
    return of(0.0, num_bytes, rates.fp32_gflops, rates.read_gbs)
