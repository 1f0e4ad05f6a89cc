# SPDX-License-Identifier: Apache-2.0
"""Every BlockPool error: its type, its text, and that it changes nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from treeattn.kv_cache import BlockPool, OutOfBlocks, UnknownSequence


def state(pool: BlockPool, *seqs: int) -> object:
    refs = [pool.ref_count(block) for block in range(pool.num_blocks)]
    tables = [(seq, pool.context_len(seq), pool.block_table(seq)) for seq in seqs]
    return refs, tables, pool.num_free


BAD_ARGUMENTS: dict[str, tuple[Callable[[BlockPool], object], str]] = {
    "create negative": (lambda p: p.create(-1, [1]), "seq must be a non-negative .* got -1"),
    "create duplicate": (lambda p: p.create(0, [1]), "seq must be a new .* sequence 0 exists"),
    "reserve negative": (lambda p: p.reserve(0, -2), "num_nodes must be >= 0, got -2 .* 0"),
    "commit too much": (
        lambda p: p.commit(0, [1] * 6),
        "tokens must be no more than reserved: sequence 0 has room for 5, got 6",
    ),
    "row too short": (
        lambda p: p.commit(0, [1], p.block_table(0)[:-1]),
        "block_table must be a permutation .* sequence 0: expected 3 entries, got 2",
    ),
    "row too long": (
        lambda p: p.commit(0, [1], [*p.block_table(0), 7]),
        "block_table must be a permutation .* sequence 0: expected 3 entries, got 4",
    ),
    "row moves committed": (
        lambda p: p.commit(0, [1], p.block_table(0)[::-1]),
        "block_table must not move whole committed blocks: entry 0 of sequence 0 is block 0, got 2",
    ),
    "row with a foreign block": (
        lambda p: p.commit(0, [1], [*p.block_table(0)[:2], 7]),
        "permutation of the blocks of sequence 0: block 2 is listed 0 times, expected 1",
    ),
    "row with a block twice": (
        lambda p: p.commit(0, [1], [0, 1, 1]),
        "permutation of the blocks of sequence 0: block 1 is listed 2 times, expected 1",
    ),
    "row out of int32": (
        lambda p: p.commit(0, [1], [0, 1, 2 + 2**32]),
        "permutation of the blocks of sequence 0: block 2 is listed 0 times, expected 1",
    ),
    "fork onto itself": (lambda p: p.fork(0, 0), "new_seq must be a new .* sequence 0 exists"),
    "fork onto another": (lambda p: p.fork(0, 1), "new_seq must be a new .* sequence 1 exists"),
    "fork negative": (lambda p: p.fork(0, -3), "new_seq must be a non-negative .* got -3"),
    "ref_count low": (lambda p: p.ref_count(-1), r"block must be in \[0, 8\), got -1"),
    "ref_count high": (lambda p: p.ref_count(8), r"block must be in \[0, 8\), got 8"),
}


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_value_errors_and_change_nothing(name: str, prefix_cache: bool) -> None:
    call, message = BAD_ARGUMENTS[name]
    pool = BlockPool(8, 4, prefix_cache)
    pool.create(0, [1, 2, 3, 4, 5])
    pool.reserve(0, 5)
    pool.create(1, [6])
    before = state(pool, 0, 1)
    with pytest.raises(ValueError, match=message) as caught:
        call(pool)
    assert not isinstance(caught.value, KeyError)
    assert state(pool, 0, 1) == before
    pool.check()
    pool.commit(0, [1] * 5)  # the reservation is still there


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "message"),
    [
        (0, 4, r"num_blocks must be in \[1, 2\^31\), got 0"),
        (-1, 4, r"num_blocks must be in \[1, 2\^31\), got -1"),
        (2**31, 4, r"num_blocks must be in \[1, 2\^31\), got 2147483648"),
        (4, 0, r"block_size must be in \[1, 2\^31\), got 0"),
        (4, 2**31, r"block_size must be in \[1, 2\^31\), got 2147483648"),
    ],
)
def test_bad_pools(num_blocks: int, block_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockPool(num_blocks, block_size)


UNKNOWN: dict[str, Callable[[BlockPool], object]] = {
    "reserve": lambda p: p.reserve(5, 1),
    "commit": lambda p: p.commit(5, []),
    "fork": lambda p: p.fork(5, 6),
    "free": lambda p: p.free(5),
    "block_table": lambda p: p.block_table(5),
    "context_len": lambda p: p.context_len(5),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_sequences_are_key_errors(name: str) -> None:
    pool = BlockPool(4, 4)
    pool.create(0, [1])
    with pytest.raises(KeyError, match=f"{name}: sequence 5 is unknown"):
        UNKNOWN[name](pool)
    assert pool.num_free == 3
    pool.check()


def test_a_second_free_is_a_value_error() -> None:
    pool = BlockPool(4, 4)
    pool.create(0, [1])
    pool.free(0)
    with pytest.raises(ValueError, match="free: sequence 0 is unknown or was freed before"):
        pool.free(0)
    assert pool.num_free == 4
    pool.check()


def test_out_of_blocks_is_a_runtime_error_and_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    pool.create(0, [1] * 9)
    before = state(pool, 0)
    with pytest.raises(OutOfBlocks, match="create: sequence 1 needs 2 more blocks of 4 tokens"):
        pool.create(1, [1] * 5)
    with pytest.raises(KeyError):
        pool.block_table(1)
    for num_nodes in (8, 2**40, 2**63 - 1):
        with pytest.raises(OutOfBlocks, match=r"reserve: sequence 0 needs .* but 1 of num_blocks"):
            pool.reserve(0, num_nodes)
    assert state(pool, 0) == before
    assert issubclass(OutOfBlocks, RuntimeError)
    pool.check()


@pytest.mark.parametrize("error", [OutOfBlocks("no room"), UnknownSequence("who")])
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
