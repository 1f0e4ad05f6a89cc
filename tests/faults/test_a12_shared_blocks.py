# SPDX-License-Identifier: Apache-2.0
"""Fault A12: sequences that share a block copy it once each, and release it once each."""

from __future__ import annotations

import numpy as np
import pytest
from treeattn.kv_cache import BlockPool


def test_two_forks_with_a_half_full_tail() -> None:
    pool = BlockPool(num_blocks=8, block_size=4)
    kv = np.full((8, 4), np.nan)
    a, b = 0, 1
    pool.create(a, [10, 11, 12, 13, 14, 15])
    p0, p1 = pool.block_table(a)
    kv[p0], kv[p1, :2] = [0, 1, 2, 3], [4, 5]
    pool.fork(a, b)
    assert [pool.ref_count(p0), pool.ref_count(p1)] == [2, 2]

    ((src, dst),) = pool.reserve(a, 1)
    assert src == p1
    kv[dst] = kv[src]
    before = kv[p1].copy()
    kv[dst, 2] = 6
    pool.commit(a, [16])
    assert pool.block_table(a) == [p0, dst]
    assert pool.block_table(b) == [p0, p1]
    np.testing.assert_array_equal(kv[p1], before)
    assert kv[pool.block_table(a)].ravel()[:7].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [pool.ref_count(block) for block in (p0, p1, dst)] == [2, 1, 1]

    assert pool.reserve(b, 1) == []  # the last owner does not copy
    pool.commit(b, [17])
    assert pool.block_table(b) == [p0, p1]

    pool.free(a)
    assert [pool.ref_count(block) for block in (p0, p1, dst)] == [1, 1, 0]
    with pytest.raises(ValueError, match="sequence 0 is unknown or was freed before"):
        pool.free(a)
    assert [pool.ref_count(block) for block in (p0, p1, dst)] == [1, 1, 0]
    pool.free(b)
    assert [pool.ref_count(block) for block in range(8)] == [0] * 8
    assert pool.num_free == 8
    pool.check()


def test_four_sequences_that_diverge_at_once_make_three_copies() -> None:
    pool = BlockPool(num_blocks=16, block_size=4)
    pool.create(0, list(range(6)))
    for seq in (1, 2, 3):
        pool.fork(0, seq)
    tail = pool.block_table(0)[1]
    copies = [pair for seq in range(4) for pair in pool.reserve(seq, 1)]
    assert [src for src, _ in copies] == [tail] * 3
    assert len({dst for _, dst in copies}) == 3
    assert pool.block_table(3)[1] == tail
    assert pool.num_used == 5
    pool.check()


def test_forks_of_a_fork_release_each_block_once() -> None:
    pool = BlockPool(num_blocks=8, block_size=4)
    pool.create(0, list(range(6)))
    pool.fork(0, 1)
    pool.fork(1, 2)
    pool.free(1)
    p0, p1 = pool.block_table(0)
    assert [pool.ref_count(p0), pool.ref_count(p1)] == [2, 2]
    assert len(pool.reserve(2, 3)) == 1
    pool.free(0)
    assert [pool.ref_count(p0), pool.ref_count(p1)] == [1, 0]
    pool.free(2)
    assert pool.num_free == 8
    pool.check()
