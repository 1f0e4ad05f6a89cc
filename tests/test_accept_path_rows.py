# SPDX-License-Identifier: Apache-2.0
"""How rows are read: ahead of the walk and on several threads, in pieces, without widening."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, assert_same, on, plan_of, random_allowed
from torch import Tensor
from treeattn import reference
from treeattn.ops import AcceptedPath, accept_path
from treeattn.plan import TreePlan

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
VOCAB = 33_001  # a row of any dtype is worth a thread, and ends within every piece and vector


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n}_threads")
def threads(request: pytest.FixtureRequest, machine: str) -> Iterator[int]:
    if machine != "cpu" and request.param > 1:
        pytest.skip("torch's threads are the CPU's")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def walked(
    plan: TreePlan, walk: list[int], generator: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(logits, tokens): every rule follows `walk` from the root and leaves the tree after it.

    Rows beside the walk are NaN.
    """
    tokens = torch.randperm(VOCAB - 1, generator=generator)[: plan.num_nodes]
    logits = torch.full((plan.num_nodes, VOCAB), torch.nan, dtype=dtype)
    for node, token in zip(walk, [*tokens[walk[1:]].tolist(), VOCAB - 1], strict=True):
        row = torch.randn(VOCAB, generator=generator)
        row[token] = 40.0
        logits[node] = row.to(dtype)
    return logits, tokens


# A chain, and a tree whose walk leaves the first children at once, twice, or at the end.
CHAIN = [-1, *range(11)]
TREE = [-1, 0, 0, 1, 1, 2, 2, 3, 5, 6, 6, 10]
WALKS: list[tuple[list[int], list[int]]] = [
    *((CHAIN, list(range(length))) for length in range(1, 13)),
    *((TREE, walk) for walk in ([0, 1, 3, 7], [0, 2, 5, 8], [0, 2, 6, 10, 11], [0, 1, 4], [0, 2])),
]


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_every_walk(dtype: torch.dtype, threads: int, device: str) -> None:
    for number, (parents, walk) in enumerate(WALKS):
        generator = torch.Generator().manual_seed(number)
        plan = plan_of([parents], [number])
        logits, tokens = walked(plan, walk, generator, dtype)
        for options in ({}, {"rule": "target", "seeds": 3}, {"return_logprobs": True}):
            got = accept_path(logits.to(device), tokens.to(device), on(device, plan), **options)
            assert_same(got, reference.accept_path(logits, tokens, plan, **options), walk)
            assert got.path[0, : len(walk)].tolist() == walk
            assert got.num_accepted.tolist() == [len(walk) - 1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_row_ends_the_walk_where_it_stands(bad: float, threads: int, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    plan = plan_of([CHAIN])
    for depth in range(12):
        logits, tokens = walked(plan, list(range(12)), generator, FP32)
        logits[depth, VOCAB - 1 - depth] = bad
        got = accept_path(logits.to(device), tokens.to(device), on(device, plan))
        assert got.status.tolist() == [1]
        assert got.next_tokens.tolist() == [-1]
        assert got.path[0].tolist() == [*range(depth + 1), *[-1] * (11 - depth)]


def test_the_walk_ends_at_the_depth_of_the_plan(threads: int, device: str) -> None:
    """A plan that was cut short after it was made: what lies deeper has no influence."""
    generator = torch.Generator().manual_seed(2)
    plan = plan_of([[-1, 0, 1]])
    logits, tokens = walked(plan, [0, 1, 2], generator, FP32)
    logits[2] = torch.nan
    got = accept_path(logits.to(device), tokens.to(device), on(device, replace(plan, max_depth=1)))
    assert got.path.tolist() == [[0, 1]]
    assert got.next_tokens.tolist() == [int(tokens[2])]
    assert got.status.tolist() == [0]


def bits_of(accepted: AcceptedPath) -> list[Tensor]:
    assert accepted.logprobs is not None
    return [
        *(getattr(accepted, name) for name in INTEGER_FIELDS),
        accepted.logprobs.view(torch.int),
    ]


def test_threads_and_batch_mates_never_change_a_request() -> None:
    """Bitwise: alone or in a batch, on one thread or several."""
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    trees = [CHAIN, TREE, [-1], TREE]
    batch = plan_of(trees, [5, 6, 7, 8], max_depth=11)
    logits = torch.randn(batch.num_nodes, VOCAB, generator=generator) * 2
    logits[:, :3] += 12.0
    tokens = torch.randint(0, 3, (batch.num_nodes,), generator=generator)
    before = torch.get_num_threads()
    try:
        for top_p in (1.0, 0.9):
            options = {
                "rule": "target", "top_p": top_p, "temperature": 0.9, "return_logprobs": True,
            }  # fmt: skip
            seeds = torch.tensor([rng.randrange(2**40) for _ in trees])
            torch.set_num_threads(2)
            whole = bits_of(accept_path(logits, tokens, batch, seeds=seeds, **options))
            for num_threads in (1, 3):
                torch.set_num_threads(num_threads)
                again = bits_of(accept_path(logits, tokens, batch, seeds=seeds, **options))
                assert all(map(torch.equal, whole, again))
            for b, tree in enumerate(trees):
                alone = plan_of([tree], [5 + b], max_depth=11)
                rows = slice(*batch.node_indptr[b : b + 2].tolist())
                got = bits_of(
                    accept_path(
                        logits[rows], tokens[rows], alone, seeds=seeds[b : b + 1], **options
                    )
                )
                assert all(torch.equal(x[b : b + 1], y) for x, y in zip(whole, got, strict=True))
    finally:
        torch.set_num_threads(before)


def greedy(rows: Tensor) -> AcceptedPath:
    tokens = torch.zeros(len(rows), dtype=torch.int32)
    return accept_path(rows, tokens, plan_of([[-1]] * len(rows)))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("vocab_size", [1, 7, 40, 4095, 4097, 8203])
def test_the_lowest_id_wins_ties(vocab_size: int, dtype: torch.dtype, cpu_isa: str) -> None:
    """Wherever the tie lies: in one vector, across pieces, in the last few ids."""
    rng = random.Random(vocab_size)
    places = [0, 1, 15, 16, 31, 32, 33, 4094, 4095, 4096, 8191, 8192, vocab_size - 1]
    places = sorted({i for i in places if i < vocab_size})
    rows = torch.full((3 * len(places), vocab_size), -3.0, dtype=dtype)
    for i, place in enumerate(places):
        later = [rng.randrange(place, vocab_size) for _ in range(4)]
        rows[i, [place, *later]] = 2.5  # beyond the rest
        rows[len(places) + i, [place, *later]] = -0.25  # ... all being negative
        rows[2 * len(places) + i, later] = 0.0  # zeros of both signs are one value
        rows[2 * len(places) + i, place] = -0.0
    got = greedy(rows)
    assert got.status.eq(0).all()
    assert got.next_tokens.tolist() == places * 3


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_greedy_finds_every_id(dtype: torch.dtype, cpu_isa: str) -> None:
    rows = -torch.eye(131).to(dtype) * 2 - 1
    rows.fill_diagonal_(-0.5)
    assert greedy(rows).next_tokens.tolist() == list(range(131))
    lowest = torch.finfo(dtype).min
    rows = torch.full((131, 131), -torch.inf, dtype=dtype).fill_diagonal_(lowest)
    assert greedy(rows).next_tokens.tolist() == list(range(131))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_what_is_not_finite_is_seen_everywhere(dtype: torch.dtype, cpu_isa: str) -> None:
    """Every NaN pattern at the ends of the range, and +inf, at each place of a row."""
    integers = {FP32: torch.int32, BF16: torch.int16, FP16: torch.int16}[dtype]
    infinity = torch.tensor(torch.inf, dtype=dtype).view(integers).item()
    last = 2 ** (31 if dtype == FP32 else 15) - 1  # the largest NaN without a sign
    first = -last - 1
    patterns = [infinity, infinity + 1, last, first + infinity + 1, -1]
    for pattern in patterns:
        rows = torch.zeros(75, 75, dtype=dtype)
        rows.view(integers).fill_diagonal_(pattern)
        assert greedy(rows).status.tolist() == [1] * 75, hex(pattern)
    rows = torch.zeros(75, 75, dtype=dtype).fill_diagonal_(-torch.inf)
    rows[:, 74] = torch.finfo(dtype).max
    assert greedy(rows).status.tolist() == [0] * 75
    assert greedy(torch.full((2, 75), -torch.inf, dtype=dtype)).status.tolist() == [2, 2]


def shapes_of_rows(vocab_size: int, generator: torch.Generator) -> list[Tensor]:
    """Rows on which guesses at a cut are good, useless, or wrong."""
    normal = torch.randn(vocab_size, generator=generator)
    few = normal.clone()
    few[torch.randperm(vocab_size, generator=generator)[:30]] += 11.0
    # A guess looks at runs of eight ids: here they are all alike, and unlike the others.
    in_sample = torch.arange(vocab_size) % (vocab_size // 64) < 8
    sample_lies = torch.where(in_sample, -9.0, normal)
    sample_boasts = torch.where(in_sample, normal + 3.0, normal)
    sorted_row = normal.sort().values
    cold = torch.where(normal < 0, -torch.inf, normal)
    return [
        normal,
        normal * 4,
        few,
        sample_lies,
        sample_boasts,
        sorted_row,
        sorted_row.flip(0) * 3,
        cold,
        normal.round(),
        torch.full((vocab_size,), 1.5),
        torch.where(normal > 1, 2.0, 1.0),
        normal * 1e-6,
        normal * 9,
    ]


# No top_p that a whole number of equal ids reaches exactly: there rounding would decide.
FILTERS = [
    {"top_p": 0.9013},
    {"top_p": 0.3071},
    {"top_p": 0.9987},
    {"top_p": 1e-6},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 1500},
    {"top_k": 50, "top_p": 0.8131},
    {"top_k": 2000, "top_p": 0.9471, "min_p": 0.01},
    {"top_p": 0.9013, "min_p": 0.2},
    {"min_p": 0.05},
    {"top_p": 0.9013, "temperature": 0.6},
    {"top_p": 0.9013, "temperature": 2.0},
]


@cache  # every machine meets the same rows
def filtered(vocab_size: int, dtype: torch.dtype, masked: bool) -> tuple[dict[str, Any], list[Any]]:
    """(what accept_path gets beside a filter, the oracle's word on each of FILTERS)."""
    generator = torch.Generator().manual_seed(vocab_size)
    rows = torch.stack(shapes_of_rows(vocab_size, generator)).to(dtype)
    rows = rows.repeat(3, 1)  # drawn at the first id that stays, at the last, and between
    count = len(rows) // 3
    between = torch.rand(count, generator=generator)
    uniform = torch.cat([torch.zeros(count), torch.full((count,), 1 - 2.0**-24), between])
    arguments = {
        "logits": rows,
        "tokens": torch.zeros(len(rows), dtype=torch.int32),
        "plan": plan_of([[-1]] * len(rows)),
        "rule": "target",
        "uniforms": torch.stack([torch.zeros_like(uniform), uniform], 1),
    }
    if masked:
        arguments["allowed"] = random_allowed(random.Random(7), len(rows), vocab_size)
    return arguments, [reference.accept_path(**arguments, **filters) for filters in FILTERS]


def check_filters(vocab_size: int, dtype: torch.dtype, *, masked: bool = False) -> None:
    arguments, wanted = filtered(vocab_size, dtype, masked)
    for filters, want in zip(FILTERS, wanted, strict=True):
        assert_same(accept_path(**arguments, **filters), want, filters)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_filters_of_a_large_vocabulary(dtype: torch.dtype) -> None:
    check_filters(20_011, dtype)


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_filters_on_every_instruction_set(masked: bool, cpu_isa: str) -> None:
    check_filters(3_001, FP32, masked=masked)
    check_filters(2_500, BF16, masked=masked)
