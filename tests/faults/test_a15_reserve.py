# SPDX-License-Identifier: Apache-2.0
"""Fault A15: room for the whole tree is there before anything writes it."""

from __future__ import annotations

import pytest
from treeattn.kv_cache import BlockPool, OutOfBlocks


def test_a_tree_across_two_block_boundaries() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    pool.create(0, [1] * 14)
    pool.reserve(0, 20)  # slots 14 .. 33
    assert len(pool.block_table(0)) == 3


def test_too_few_blocks_is_said_before_anything_is_reserved() -> None:
    pool = BlockPool(num_blocks=2, block_size=16)
    pool.create(7, [1] * 14)
    with pytest.raises(OutOfBlocks, match=r"sequence 7 needs 2 more blocks of 16.*1 of num_blocks"):
        pool.reserve(7, 20)
    assert len(pool.block_table(7)) == 1
    assert pool.num_free == 1
    with pytest.raises(ValueError, match="has room for 0"):
        pool.commit(7, [1])


@pytest.mark.parametrize("context_len", range(1, 41))
def test_every_slot_of_the_tree_has_a_private_block(context_len: int) -> None:
    pool = BlockPool(num_blocks=16, block_size=16)
    pool.create(0, [1] * context_len)
    pool.fork(0, 1)
    pool.reserve(0, 20)
    pool.reserve(1, 20)
    tables = pool.block_table(0), pool.block_table(1)
    slots = range(context_len, context_len + 20)
    for table in tables:
        assert len(table) == slots[-1] // 16 + 1
        assert all(pool.ref_count(table[slot // 16]) == 1 for slot in slots)
    written = [{table[slot // 16] for slot in slots} for table in tables]
    assert written[0].isdisjoint(tables[1])
    assert written[1].isdisjoint(tables[0])
    pool.check()
