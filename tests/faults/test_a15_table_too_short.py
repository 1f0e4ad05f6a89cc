# SPDX-License-Identifier: Apache-2.0
"""A15: a table that does not cover context and tree is refused before anything is written."""

from __future__ import annotations

import pytest
import torch
from support.trees import pack_parents
from treeattn.plan import TreePlan, plan_tree

BLOCK_SIZE, NUM_NODES = 16, 20


def plan(context_len: int, table: list[int]) -> TreePlan:
    parents, node_indptr = pack_parents([[-1, *range(NUM_NODES - 1)]])
    return plan_tree(
        parents,
        node_indptr,
        torch.tensor([context_len]),
        torch.tensor([table]),
        block_size=BLOCK_SIZE,
        num_qo_heads=1,
        num_kv_heads=1,
    )


def test_unreserved_entry() -> None:
    with pytest.raises(
        ValueError, match=r"request 0 must list 3 blocks for context_len 14 .*got 2"
    ):
        plan(14, [8, 3, -1])


def test_reserved_entry() -> None:
    slots = plan(14, [8, 3, 5]).slot_mapping.tolist()
    assert slots == [8 * 16 + 14, 8 * 16 + 15, *range(3 * 16, 4 * 16), 5 * 16, 5 * 16 + 1]


@pytest.mark.parametrize("context_len", range(1, 41))
def test_every_boundary(context_len: int) -> None:
    needed = -(-(context_len + NUM_NODES) // BLOCK_SIZE)
    blocks = [8, 3, 5, 11][:needed]
    written = {slot // BLOCK_SIZE for slot in plan(context_len, blocks).slot_mapping.tolist()}
    assert written == set(blocks[context_len // BLOCK_SIZE :])
    message = f"must list {needed} blocks for context_len {context_len} .*got {needed - 1}"
    with pytest.raises(ValueError, match=message):
        plan(context_len, blocks[:-1])
