# SPDX-License-Identifier: Apache-2.0
"""BlockPool, rule by rule: tables, reservations, forks, the prefix cache."""

from __future__ import annotations

import pytest
from treeattn.kv_cache import BlockPool, OutOfBlocks


def state(pool: BlockPool, *seqs: int) -> object:
    refs = [pool.ref_count(block) for block in range(pool.num_blocks)]
    tables = [(seq, pool.context_len(seq), pool.block_table(seq)) for seq in seqs]
    return refs, tables, pool.num_free


# Tables and lengths -------------------------------------------------------------------------------


def test_properties_are_read_only() -> None:
    pool = BlockPool(num_blocks=5, block_size=4)
    assert (pool.num_blocks, pool.block_size, pool.num_free, pool.num_used) == (5, 4, 5, 0)
    pool.create(0, [1] * 5)
    assert (pool.num_free, pool.num_used) == (3, 2)
    for name in ("num_blocks", "block_size", "num_free", "num_used"):
        with pytest.raises(AttributeError):
            setattr(pool, name, 1)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 9])
def test_create_takes_just_the_blocks_of_its_tokens(length: int) -> None:
    pool = BlockPool(8, 4)
    assert pool.create(3, list(range(length))) == 0
    assert pool.context_len(3) == length
    table = pool.block_table(3)
    assert len(table) == -(-length // 4) == len(set(table))
    assert pool.num_free == 8 - len(table)
    pool.check()


def test_reserve_is_a_total_not_an_increment() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 6)
    sizes = []
    for num_nodes in (2, 3, 11, 11, 3, 0):
        assert pool.reserve(0, num_nodes) == []
        sizes.append(len(pool.block_table(0)))
        pool.check()
    assert sizes == [2, 3, 5, 5, 3, 2]
    with pytest.raises(ValueError, match="tokens must be no more than reserved"):
        pool.commit(0, [1])


def test_reserve_on_a_block_boundary_needs_a_new_block() -> None:
    pool = BlockPool(4, 4)
    pool.create(0, [1] * 4)
    pool.reserve(0, 1)
    assert len(pool.block_table(0)) == 2
    pool.commit(0, [5])
    assert len(pool.block_table(0)) == 2
    pool.create(1, [])
    assert pool.block_table(1) == []
    pool.reserve(1, 4)
    assert len(pool.block_table(1)) == 1


def test_commit_gives_back_what_lies_past_the_new_length() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 3)
    pool.reserve(0, 17)
    table = pool.block_table(0)
    assert len(table) == 5
    pool.commit(0, [7, 8])
    assert pool.block_table(0) == table[:2]
    assert pool.context_len(0) == 5
    assert pool.num_free == 6
    pool.check()


def test_commit_of_nothing_drops_the_draft() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 4)
    pool.reserve(0, 9)
    pool.commit(0, [])
    assert (pool.context_len(0), len(pool.block_table(0)), pool.num_free) == (4, 1, 7)
    pool.check()


def test_commit_takes_the_row_that_remap_has_permuted() -> None:
    pool = BlockPool(8, 2)
    pool.create(0, [1, 2, 3, 4])
    pool.reserve(0, 8)
    a, b, c, d, e, f = pool.block_table(0)
    pool.commit(0, [5, 6, 7], [a, b, e, f, c, d])
    assert pool.block_table(0) == [a, b, e, f]
    assert pool.ref_count(c) == pool.ref_count(d) == 0
    pool.check()


def test_ids_can_be_used_again() -> None:
    pool = BlockPool(2, 4)
    for _ in range(5):
        pool.create(9, [1] * 8)
        pool.free(9)
    assert pool.num_free == 2


# Forks --------------------------------------------------------------------------------------------


def test_fork_shares_committed_tokens_and_drops_the_reservation() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 6)
    pool.reserve(0, 7)
    table = pool.block_table(0)
    pool.fork(0, 1)
    assert pool.block_table(0) == pool.block_table(1) == table[:2]
    assert pool.context_len(1) == 6
    assert [pool.ref_count(block) for block in table] == [2, 2, 0, 0]
    for seq in (0, 1):
        with pytest.raises(ValueError, match="has room for 0, got 1"):
            pool.commit(seq, [5])
    pool.check()


def test_fork_on_a_block_boundary_never_copies() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 8)
    pool.fork(0, 1)
    assert pool.reserve(0, 3) == []
    assert pool.reserve(1, 3) == []
    a, b = pool.block_table(0), pool.block_table(1)
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    pool.check()


def test_fork_of_an_empty_sequence() -> None:
    pool = BlockPool(4, 4)
    pool.create(0, [])
    pool.fork(0, 1)
    assert pool.reserve(1, 2) == []
    assert pool.block_table(0) == []
    pool.check()


def test_reserving_nothing_copies_nothing() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 6)
    pool.fork(0, 1)
    assert pool.reserve(1, 0) == []
    assert pool.block_table(0) == pool.block_table(1)
    assert len(pool.reserve(1, 1)) == 1


def test_a_copied_tail_is_not_copied_again() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, [1] * 6)
    pool.fork(0, 1)
    source = pool.block_table(0)[1]
    ((src, dst),) = pool.reserve(1, 1)
    assert src == source
    assert pool.block_table(1)[1] == dst
    assert pool.reserve(1, 9) == []
    assert pool.reserve(1, 2) == []
    assert pool.reserve(0, 2) == []  # the last owner does not copy
    pool.check()


def test_the_copy_counts_when_blocks_are_short() -> None:
    pool = BlockPool(3, 4)
    pool.create(0, [1] * 6)
    pool.fork(0, 1)
    before = state(pool, 0, 1)
    with pytest.raises(OutOfBlocks, match=r"needs 2 more blocks.*1 of num_blocks = 3 are free"):
        pool.reserve(1, 3)  # one copy and one new block
    assert state(pool, 0, 1) == before
    assert len(pool.reserve(1, 2)) == 1


# Prefix cache -------------------------------------------------------------------------------------


def cached_pool(num_blocks: int = 8, block_size: int = 4) -> BlockPool:
    return BlockPool(num_blocks, block_size, prefix_cache=True)


def test_without_the_cache_nothing_is_shared() -> None:
    pool = BlockPool(8, 4)
    pool.create(0, list(range(9)))
    assert pool.create(1, list(range(9))) == 0


@pytest.mark.parametrize(
    ("length", "hit"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (16, 12)]
)
def test_create_hits_whole_blocks_but_never_the_last_token(length: int, hit: int) -> None:
    pool = cached_pool(16)
    pool.create(0, list(range(13)))
    assert pool.create(1, list(range(length))) == hit
    assert pool.block_table(1)[: hit // 4] == pool.block_table(0)[: hit // 4]
    pool.check()


def test_hits_follow_the_chain_from_the_first_token() -> None:
    pool = cached_pool()
    pool.create(0, [1, 2, 3, 4, 5, 6, 7, 8])
    assert pool.create(1, [9, 2, 3, 4, 5, 6, 7, 8, 0]) == 0  # equal second block, other first block
    assert pool.create(2, [1, 2, 3, 4, 5, 6, 7, 9, 0]) == 4


def test_blocks_with_equal_hashes_are_told_apart_by_their_tokens() -> None:
    """The hash of csrc/host/prefix_index.cpp, and two blocks below the root that collide in it."""

    def mix(value: int) -> int:
        value = value * 0x9E3779B97F4A7C15 % 2**64
        return value ^ (value >> 32)

    def as_int64(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    root = mix(1)
    one, other = mix(root ^ 10), mix(root ^ 20)
    block, colliding = [10, 30], [20, as_int64(30 ^ one ^ other)]
    assert mix(one ^ 30) == mix(other ^ (colliding[1] % 2**64))
    pool = BlockPool(64, 2, prefix_cache=True)
    pool.create(0, [*block, 5])
    assert pool.create(1, [*colliding, 5]) == 0
    assert pool.create(2, [*block, 5]) == pool.create(3, [*colliding, 5]) == 2
    assert pool.block_table(2)[0] != pool.block_table(3)[0]


def test_committed_tokens_enter_the_cache_and_drafts_do_not() -> None:
    pool = cached_pool()
    pool.create(0, [1, 2, 3])
    pool.reserve(0, 9)
    pool.commit(0, [4, 5, 6, 7, 8, 9])
    pool.reserve(0, 9)
    assert pool.create(2, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]) == 8
    assert pool.block_table(2)[:2] == pool.block_table(0)[:2]
    pool.check()


def test_permuted_blocks_are_cached_in_their_new_order() -> None:
    pool = BlockPool(8, 2, prefix_cache=True)
    pool.create(0, [1, 2])
    pool.reserve(0, 6)
    a, b, c, d = pool.block_table(0)
    pool.commit(0, [3, 4, 5], [a, d, b, c])
    assert pool.create(1, [1, 2, 3, 4, 9]) == 4
    assert pool.block_table(1)[:2] == [a, d]


def test_the_first_of_two_equal_blocks_stays_cached() -> None:
    pool = cached_pool()
    pool.create(0, [1, 2, 3, 4])
    pool.create(1, [1, 2, 3, 4])  # not a hit: it would cover the last token
    assert pool.block_table(0) != pool.block_table(1)
    first = pool.block_table(0)[0]
    pool.free(1)
    assert pool.create(2, [1, 2, 3, 4, 5]) == 4
    assert pool.block_table(2)[0] == first
    pool.check()


def test_the_chain_goes_on_below_a_duplicate() -> None:
    pool = cached_pool()
    pool.create(0, [1, 2, 3, 4])
    pool.create(1, [1, 2, 3, 4])
    pool.reserve(1, 4)
    pool.commit(1, [5, 6, 7, 8])
    assert pool.create(2, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 8
    assert pool.block_table(2)[:2] == [pool.block_table(0)[0], pool.block_table(1)[1]]
    pool.check()


def test_freed_blocks_stay_cached_and_count_as_free() -> None:
    pool = cached_pool(4)
    pool.create(0, list(range(12)))
    table = pool.block_table(0)
    pool.free(0)
    assert pool.num_free == 4
    assert pool.create(1, list(range(12))) == 8
    assert pool.block_table(1)[:2] == table[:2]
    pool.check()


def test_eviction_takes_uncached_blocks_first_then_the_oldest() -> None:
    pool = cached_pool(4)
    pool.create(0, [1] * 4)
    pool.create(1, [2] * 4)
    pool.create(2, [3] * 4)
    old, new = pool.block_table(1)[0], pool.block_table(0)[0]
    pool.free(1)
    pool.free(0)
    pool.create(3, [9])
    assert pool.block_table(3)[0] not in (old, new)
    pool.create(4, [9])
    assert pool.block_table(4) == [old]
    assert pool.create(5, [2] * 4) == 0  # evicts [1] * 4
    assert pool.block_table(5) == [new]
    pool.check()


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = cached_pool(3)
    pool.create(0, list(range(12)))
    pool.free(0)
    pool.create(1, [99])
    pool.free(1)
    assert pool.create(2, list(range(12))) == 8


def test_a_hit_is_never_evicted_by_its_own_create() -> None:
    pool = cached_pool(3)
    pool.create(0, list(range(8)))
    pool.create(1, [50] * 4)
    table = pool.block_table(0)
    pool.free(0)  # the first block of the chain is the newest in the queue, the second the oldest
    pool.free(1)
    assert pool.create(2, list(range(12))) == 8
    assert pool.block_table(2)[:2] == table
    pool.check()


def test_hits_do_not_count_as_room() -> None:
    pool = cached_pool(3)
    pool.create(0, list(range(8)))
    pool.create(1, [50])
    pool.free(0)  # two free blocks, both are hits of the next prompt
    with pytest.raises(OutOfBlocks, match=r"sequence 2 needs 1 more blocks.*0 of num_blocks = 3"):
        pool.create(2, list(range(9)))
    assert pool.num_free == 2
    assert pool.create(3, list(range(8))) == 4
    pool.check()


def test_fork_and_hit_share_one_block() -> None:
    pool = cached_pool()
    pool.create(0, list(range(6)))
    pool.fork(0, 1)
    assert pool.create(2, list(range(6))) == 4
    assert pool.ref_count(pool.block_table(0)[0]) == 3
    for seq in (0, 1, 2):
        pool.free(seq)
    assert pool.num_free == 8
    pool.check()
