# SPDX-License-Identifier: Apache-2.0
"""Block tables whose unused entries are poison."""

from __future__ import annotations

import random

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
