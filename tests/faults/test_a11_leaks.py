# SPDX-License-Identifier: Apache-2.0
"""Fault A11: the slots of a draft are never lost, whatever is accepted, aborted or preempted."""

from __future__ import annotations

import random

import pytest
from treeattn.kv_cache import BlockPool, OutOfBlocks

NUM_BLOCKS, NUM_REQUESTS, NUM_STEPS, MAX_NODES = 512, 40, 2000, 60


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_no_block_leaks(block_size: int, prefix_cache: bool) -> None:
    rng = random.Random(block_size)
    pool = BlockPool(NUM_BLOCKS, block_size, prefix_cache)
    allocated: dict[int, int] = {}  # tokens that each live request has room for
    next_seq = 0

    def check_usage() -> None:
        pool.check()
        tables = [pool.block_table(seq) for seq in allocated]
        for seq, table in zip(allocated, tables, strict=True):
            assert len(table) == -(-allocated[seq] // block_size)
        shared = sum(map(len, tables)) - len({block for table in tables for block in table})
        assert pool.num_used == sum(map(len, tables)) - shared
        assert shared == 0 or prefix_cache

    def preempt() -> None:
        victim = rng.choice(sorted(allocated))
        pool.free(victim)
        del allocated[victim]

    for _ in range(NUM_STEPS):
        while len(allocated) < NUM_REQUESTS and rng.random() < 0.5:
            prompt = [1] * rng.randrange(20) + [rng.randrange(4) for _ in range(rng.randrange(20))]
            try:
                pool.create(next_seq, prompt)
                allocated[next_seq] = len(prompt)
            except OutOfBlocks:
                break
            next_seq += 1
        for seq in rng.sample(sorted(allocated), k=min(3, len(allocated))):
            if seq not in allocated:
                continue
            num_nodes = rng.randint(1, MAX_NODES)
            try:
                pool.reserve(seq, num_nodes)
            except OutOfBlocks:
                preempt()
                continue
            allocated[seq] = pool.context_len(seq) + num_nodes
            fate = rng.random()
            if fate < 0.05:  # aborted with its draft in the cache
                pool.free(seq)
                del allocated[seq]
            elif fate < 0.9:
                accepted = rng.randint(0, min(num_nodes, 6))
                pool.commit(seq, [rng.randrange(4) for _ in range(accepted)])
                allocated[seq] = pool.context_len(seq)
        check_usage()

    for seq in list(allocated):
        pool.free(seq)
    assert pool.num_free == NUM_BLOCKS
    assert [pool.ref_count(block) for block in range(NUM_BLOCKS)] == [0] * NUM_BLOCKS
    pool.check()
