# SPDX-License-Identifier: Apache-2.0
"""accept_path as devices run it: all rows or the walk's alone, and what only devices see."""

from __future__ import annotations

import mmap
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from support import simt
from support.acceptance import (
    INTEGER_FIELDS,
    one_hot_logits,
    plan_of,
    random_allowed,
    random_problem,
    random_sampling,
)
from torch import Tensor
from treeattn import accept
from treeattn.ops import AcceptedPath, accept_path
from treeattn.plan import TreePlan

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
RULES = [
    {},
    {"rule": "target", "seeds": 5, "top_p": 0.9, "top_k": 40},
    {"rule": "target", "seeds": 1},
]


@pytest.fixture(params=simt.ORDERS)
def emulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, request.param)


def lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a workspace only the rows on the walk can be read."""
    monkeypatch.setattr(accept, "_workspace", lambda *arguments: None)


def counted(
    logits: Tensor, tokens: Tensor, plan: TreePlan, **options: Any
) -> tuple[AcceptedPath, dict[str, int]]:
    simt.take_counters()
    return accept_path(logits, tokens, plan, **options), simt.take_counters()


def bits_of(accepted: AcceptedPath) -> tuple[Tensor, ...]:
    tensors = tuple(getattr(accepted, name) for name in INTEGER_FIELDS)
    return tensors if accepted.logprobs is None else (*tensors, accepted.logprobs)


def random_call(seed: int) -> tuple[Tensor, Tensor, TreePlan, dict[str, Any]]:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    vocab_size = rng.choice([2, 9, 33, 511, 1025, 4099, 9001])
    logits, tokens, plan = random_problem(
        rng, generator, vocab_size, rng.choice([FP32, BF16, FP16])
    )
    options: dict[str, Any] = {"return_logprobs": rng.random() < 0.5}
    if rng.random() < 0.7:
        options |= {"rule": "target", **random_sampling(rng, generator, plan, vocab_size)}
    if rng.random() < 0.3:
        options["allowed"] = random_allowed(rng, plan.num_nodes, vocab_size)
    return logits, tokens, plan, options


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_and_the_cpu_choose_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers equal the CPU op's; the two ways through a tree are the same bit by bit."""
    logits, tokens, plan, options = random_call(seed)
    want = accept_path(logits, tokens, plan, **options)
    order = simt.ORDERS[seed % len(simt.ORDERS)]
    with simt.poisoned_outputs():
        simt.use(monkeypatch, order)
        all_rows = accept_path(logits, tokens, plan, **options)
        lazily(monkeypatch)
        lazy = accept_path(logits, tokens, plan, **options)
    for name in INTEGER_FIELDS:
        assert torch.equal(getattr(all_rows, name), getattr(want, name)), name
    assert all(map(simt.same_bits, bits_of(all_rows), bits_of(lazy)))


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_in_every_order(seed: int) -> None:
    logits, tokens, plan, options = random_call(100 + seed)
    simt.assert_same_in_every_order(
        lambda: bits_of(accept_path(logits, tokens, plan, **{**options, "return_logprobs": True}))
    )


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_where_a_row_begins_does_not_show(dtype: torch.dtype, emulator: None) -> None:
    """Rows at every offset within 16 bytes: sums and cuts are the same bit by bit."""
    vocab_size = 2_051
    generator = torch.Generator().manual_seed(0)
    row = (torch.randn(vocab_size, generator=generator) * 2).to(dtype)
    uniform = torch.rand(1, generator=generator).item()
    for options in ({}, {"top_p": 0.93}, {"top_k": 70, "min_p": 0.01}):
        results = []
        for shift in range(16 // dtype.itemsize):
            memory = torch.full((vocab_size + 16,), torch.nan, dtype=dtype)
            memory[shift : shift + vocab_size] = row
            results.append(
                accept_path(
                    memory[None, shift : shift + vocab_size],
                    torch.zeros(1).int(),
                    plan_of([[-1]]),
                    rule="target",
                    uniforms=torch.tensor([[0.0, uniform]]),
                    return_logprobs=True,
                    **options,
                )
            )
        for result in results:
            assert all(map(simt.same_bits, bits_of(result), bits_of(results[0])))


CHAINS = [[-1, *range(9)], [], [-1, 0, 0, 0, 1, 2], [-1]]
WALKED = 4 + 2 + 1  # rows on the way: three accepted, one accepted, none


def chains(vocab_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, TreePlan]:
    """The first request accepts three nodes of its chain, the next one child, the last nothing."""
    plan = plan_of(CHAINS)
    tokens = torch.arange(1, plan.num_nodes + 1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(plan.num_nodes, vocab_size, generator=generator)
    follows = {0: 2, 1: 3, 2: 4, 3: 40, 10: 13, 12: 41, 16: 42}
    for node, token in follows.items():
        logits[node, token] = 60.0
    return logits.to(dtype), tokens, plan


@pytest.mark.parametrize("options", RULES, ids=["greedy", "filtered", "target"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_lazy_walk_reads_its_rows_alone(
    dtype: torch.dtype, options: dict[str, Any], emulator: None
) -> None:
    short: dict[str, dict[str, int]] = {}
    long: dict[str, dict[str, int]] = {}  # rows that stay in shared memory, so each is read once
    for counters, vocab_size in ((short, 5_000), (long, 10_000)):
        logits, tokens, plan = chains(vocab_size, dtype)
        with pytest.MonkeyPatch.context() as patch:
            got, counters["all"] = counted(logits, tokens, plan, **options)
            lazily(patch)
            lazy, counters["lazy"] = counted(logits, tokens, plan, **options)
        assert got.num_accepted.tolist() == lazy.num_accepted.tolist() == [3, 0, 1, 0]
    for way, rows, launches in (("all", plan.num_nodes, 2), ("lazy", WALKED, 1)):
        assert long[way]["rows_read"] == rows
        assert long[way]["launches"] == launches
        more = long[way]["global_bytes_read"] - short[way]["global_bytes_read"]
        assert more == rows * 5_000 * dtype.itemsize


def test_a_row_beyond_shared_memory_is_read_again_in_part(emulator: None) -> None:
    """Greedy reads once; a draw passes twice over what is beyond the 48 KB that stay."""
    plan, tokens = plan_of([[-1]]), torch.zeros(1).int()

    def bytes_read(vocab_size: int, **options: Any) -> int:
        logits = torch.zeros(1, vocab_size)
        return counted(logits, tokens, plan, **options)[1]["global_bytes_read"]

    draw = {"rule": "target", "uniforms": torch.zeros(1, 2)}
    stash = 48 * 1024 // 4
    assert bytes_read(stash + 4_096) - bytes_read(4_096) == stash * 4
    assert bytes_read(stash, **draw) - bytes_read(4_096, **draw) == (stash - 4_096) * 4
    assert bytes_read(stash + 4_096, **draw) - bytes_read(stash, **draw) == 2 * 4_096 * 4


def test_the_cost_rule_chooses_by_shapes(emulator: None) -> None:
    """A wide tree of many bytes and two levels walks; few bytes, or many levels, do not."""

    def rows_read(num_nodes: int, vocab_size: int, max_depth: int) -> int:
        plan = plan_of([[-1] + [0] * (num_nodes - 1)], max_depth=max_depth)
        logits = torch.zeros(num_nodes, vocab_size)
        logits[:, 7] = 1.0
        _, counters = counted(logits, torch.zeros(num_nodes).int(), plan)
        return counters["rows_read"]

    assert rows_read(10, 1000, 1) == 10  # 0.04 MB against 17 MB
    assert rows_read(300, 20_000, 1) == 1  # 24 MB
    assert rows_read(20, 20_000, 60) == 20


def one_root_each(**options: Any) -> AcceptedPath:
    plan = plan_of([[-1, 0]] * 3)
    tokens = torch.tensor([0, 5] * 3)
    logits = one_hot_logits([5, 6] * 3, 9)
    return accept_path(logits, tokens, plan, **options)


BAD_SAMPLING = [
    {"temperature": torch.tensor([1.0, -1.0, 1.0])},
    {"temperature": torch.tensor([1.0, torch.nan, 1.0])},
    {"top_p": torch.tensor([0.9, 0.0, 0.9])},
    {"top_p": torch.tensor([0.9, torch.nan, 0.9])},
    {"min_p": torch.tensor([0.1, 1.5, 0.1])},
    {"min_p": torch.tensor([0.1, torch.nan, 0.1])},
    {"seeds": None, "temperature": torch.tensor([0.0, 0.5, 0.0])},
]


@pytest.mark.parametrize("options", BAD_SAMPLING, ids=str)
@pytest.mark.parametrize("lazy", [False, True], ids=["all_rows", "lazy"])
def test_what_only_the_device_sees_is_status_4(
    options: dict[str, Any], lazy: bool, emulator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lazy:
        lazily(monkeypatch)
    with simt.poisoned_outputs():
        got = one_root_each(**{"rule": "target", "seeds": 1, "return_logprobs": True, **options})
    assert got.status.tolist() == [0, 4, 0]
    assert got.path.tolist() == [[0, 1], [-1, -1], [0, 1]]
    assert got.num_accepted.tolist() == [1, 0, 1]
    assert got.next_tokens.tolist() == [6, -1, 6]
    assert got.emitted.tolist() == [[5, 6], [-1, -1], [5, 6]]
    assert got.logprobs is not None
    assert got.logprobs.isnan().tolist() == [[False] * 2, [True] * 2, [False] * 2]


@pytest.mark.parametrize("indptr", [[0, 3, 9, 5], [0, -2, 4, 5], [0, 4, 2, 5]], ids=str)
@pytest.mark.parametrize("lazy", [False, True], ids=["all_rows", "lazy"])
def test_offsets_out_of_range_are_never_followed(
    indptr: list[int], lazy: bool, emulator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an end lies outside the batch, or before its start, the request is refused."""
    if lazy:
        lazily(monkeypatch)
    plan = plan_of([[-1, 0, 0], [-1], [-1]])
    plan.node_indptr.copy_(torch.tensor(indptr))
    got = accept_path(one_hot_logits([1] * 5, 4), torch.zeros(5).int(), plan)
    for b, (start, end) in enumerate(pairwise(indptr)):
        assert (int(got.status[b]) == 4) == (not 0 <= start <= end <= 5), b


def test_a_stride_beyond_32_bits(emulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stride, vocab_size = 2**31, 100
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = torch.frombuffer(mmap.mmap(-1, 2 * (2 * stride + 4096), flags=flags), dtype=BF16)
    except OSError as error:
        pytest.skip(f"no address space here: {error}")
    logits = memory.as_strided((3, vocab_size), (stride, 1))
    logits.copy_(one_hot_logits([3, 9, 8], vocab_size))
    plan, tokens = plan_of([[-1, 0, 1]]), torch.tensor([0, 3, 9])
    assert accept_path(logits, tokens, plan).emitted.tolist() == [[3, 9, 8]]
    lazily(monkeypatch)
    assert accept_path(logits, tokens, plan).emitted.tolist() == [[3, 9, 8]]
