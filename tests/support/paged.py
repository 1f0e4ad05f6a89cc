# SPDX-License-Identifier: Apache-2.0
"""Block tables whose unused entries are poison."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

UNUSED_ENTRY = 2**30


def blocks_for(num_slots: int, block_size: int) -> int:
    return -(-num_slots // block_size)


def random_block_table(
    rng: random.Random,
    slots_per_request: list[int],
    block_size: int,
    *,
    num_blocks: int | None = None,
    spare_columns: int = 1,
    dtype: torch.dtype = torch.int32,
) -> Tensor:
    """[B, max_blocks] with disjoint shuffled blocks; entries past what is needed are poison."""
    needed = [blocks_for(slots, block_size) for slots in slots_per_request]
    blocks = list(range(num_blocks or sum(needed) + 3))
    rng.shuffle(blocks)
    width = max(needed, default=0) + spare_columns
    rows = []
    for count in needed:
        row, blocks = blocks[:count], blocks[count:]
        rows.append(row + [UNUSED_ENTRY] * (width - count))
    return torch.tensor(rows, dtype=dtype).reshape(len(needed), width)


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Any bit pattern of `dtype`, NaN and inf included: a mover must carry them all."""
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).squeeze(-1)


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def make_pools(
    layout: str,
    num_layers: int,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> tuple[Tensor | list[Tensor], Tensor | list[Tensor]]:
    """K and V of every layer as [num_blocks, block_size, num_kv_heads, head_dim], random bits.

    nhd: dense; hnd: heads before rows; joint: K and V of a block side by side; padded: slices of
    larger tensors; stacked: one tensor over the layers.
    """
    num_blocks, block_size, num_heads, head_dim = shape

    def layers(make: Callable[[], Tensor]) -> list[Tensor]:
        return [make() for _ in range(num_layers)]

    if layout == "nhd":
        k, v = (layers(lambda: random_bits(shape, dtype, generator)) for _ in "kv")
        return k, v
    if layout == "hnd":
        transposed = (num_blocks, num_heads, block_size, head_dim)
        k, v = (
            layers(lambda: random_bits(transposed, dtype, generator).transpose(1, 2)) for _ in "kv"
        )
        return k, v
    if layout == "joint":
        both = layers(lambda: random_bits((num_blocks, 2, *shape[1:]), dtype, generator))
        return [pool[:, 0] for pool in both], [pool[:, 1] for pool in both]
    if layout == "padded":
        wide = (num_blocks, block_size + 1, num_heads + 2, head_dim + 8)
        k, v = (
            layers(
                lambda: random_bits(wide, dtype, generator)[:, :block_size, 1:-1, 4 : 4 + head_dim]
            )
            for _ in "kv"
        )
        return k, v
    if layout == "stacked":
        stacked = (num_layers, *shape)
        return random_bits(stacked, dtype, generator), random_bits(stacked, dtype, generator)
    raise ValueError(f"layout must be nhd, hnd, joint, padded or stacked, got {layout!r}")
