# SPDX-License-Identifier: Apache-2.0
"""remap_kv against the oracle and against what it promises, bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.accepted import accepted_path
from support.paged import UNUSED_ENTRY, bits_of, make_pools
from support.remap import CASES, Batch, Case, make, slot_of
from support.trees import pack_parents
from torch import Tensor
from treeattn import reference
from treeattn.ops import remap_kv
from treeattn.plan import TreePlan, plan_tree

MACHINES = "all"


def check_promises(before: Batch, after: Batch) -> None:
    """What remap_kv promises, without the oracle's help."""
    plan, block_size = before.plan, before.plan.block_size
    touchable: set[tuple[int, int]] = set()
    for b in range(plan.num_requests):
        old, new = plan.block_table[b], after.plan.block_table[b]
        assert sorted(old.tolist()) == sorted(new.tolist())
        path = [node for node in before.accepted.path[b].tolist() if node >= 0]
        context_len, start = int(plan.context_lens[b]), int(plan.node_indptr[b])
        committed = -(-context_len // block_size) if path else len(old)
        assert torch.equal(old[:committed], new[:committed])
        for k, node in enumerate(path):
            target = slot_of(new, block_size, context_len + k)
            touchable.add(target)
            source = divmod(int(plan.slot_mapping[start + node]), block_size)
            for was, now in zip(before.planes(), after.planes(), strict=True):
                assert torch.equal(bits_of(was[source]), bits_of(now[target]))
        if block_size == 1 and not is_custom(plan, b):
            assert all(
                slot_of(new, 1, context_len + k)[0] == int(plan.slot_mapping[start + node])
                for k, node in enumerate(path)
            )
    for was, now in zip(before.planes(), after.planes(), strict=True):
        untouched = torch.ones(was.shape[:2], dtype=torch.bool)
        for block, row in touchable:
            untouched[block, row] = False
        assert torch.equal(bits_of(was[untouched]), bits_of(now[untouched]))


def is_custom(plan: TreePlan, request: int) -> bool:
    start, end = plan.node_indptr[request : request + 2].tolist()
    context_len = int(plan.context_lens[request])
    for i, slot in enumerate(plan.slot_mapping[start:end].tolist()):
        logical = context_len + i
        block, row = slot_of(plan.block_table[request], plan.block_size, logical)
        if slot != block * plan.block_size + row:
            return True
    return False


@pytest.mark.parametrize("case", CASES, ids=str)
def test_remap_kv(case: Case, device: str) -> None:
    for seed in range(12):
        batch = make(case, seed)
        before, want = copy.deepcopy(batch), copy.deepcopy(batch)
        batch = batch.on(device)
        moved = remap_kv(**batch.arguments()).cpu()
        batch = batch.on("cpu")
        assert torch.equal(moved, reference.remap_kv(**want.arguments()))
        assert torch.equal(batch.plan.block_table, want.plan.block_table)
        for got, expected in zip(batch.planes(), want.planes(), strict=True):
            assert torch.equal(bits_of(got), bits_of(expected))
        check_promises(before, batch)
        if case.block_size == 1 and not case.custom_slots:
            assert not moved.any()


def test_layers_of_several_kinds(device: str) -> None:
    """Each layer goes by its own dtype, strides, heads and head_dim, whatever its neighbour has."""
    batch = make(Case("kinds", sizes=(20, 30), branching=0.8), 5)
    num_blocks, block_size = batch.k_caches[0].shape[:2]
    generator = torch.Generator().manual_seed(5)
    kinds = [
        ("nhd", torch.float32, 2, 8),
        ("nhd", torch.float32, 2, 8),
        ("nhd", torch.bfloat16, 2, 8),
        ("hnd", torch.bfloat16, 2, 8),
        ("hnd", torch.bfloat16, 4, 8),
        ("padded", torch.bfloat16, 4, 6),
        ("nhd", torch.float32, 2, 8),
    ]
    pools = [
        make_pools(layout, 1, (num_blocks, block_size, heads, dim), dtype, generator)
        for layout, dtype, heads, dim in kinds
    ]
    batch.k_caches, batch.v_caches = [k[0] for k, _ in pools], [v[0] for _, v in pools]
    want = copy.deepcopy(batch)
    batch = batch.on(device)
    assert remap_kv(**batch.arguments()).any()
    batch = batch.on("cpu")
    reference.remap_kv(**want.arguments())
    for got, expected in zip(batch.planes(), want.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(expected))


@pytest.mark.parametrize("seed", range(20))
def test_path_in_place_is_left_alone(seed: int) -> None:
    batch = make(Case("chain", branching=0.0, block_size=2), seed)
    before = copy.deepcopy(batch)
    assert remap_kv(**batch.arguments()).sum() == 0
    assert torch.equal(batch.plan.block_table, before.plan.block_table)
    for got, was in zip(batch.planes(), before.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(was))


def test_second_call_changes_nothing() -> None:
    # With block_size 1 the path lies in place after the first call.
    batch = make(Case("again", block_size=1), 3)
    remap_kv(**batch.arguments())
    after = copy.deepcopy(batch)
    assert remap_kv(**batch.arguments()).sum() == 0
    assert torch.equal(batch.plan.block_table, after.plan.block_table)
    for got, was in zip(batch.planes(), after.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(was))


TWO_CHAINS = [-1, 0, 1, 2, 3, 0, 5, 6, 7]


def repointed_batch(
    context_len: int, paths: list[list[int]], tree: list[int] = TWO_CHAINS
) -> Batch:
    """Block size 2, the same tree in every request, tables of 8 blocks."""
    num_requests = len(paths)
    parents, node_indptr = pack_parents([tree] * num_requests)
    table = torch.arange(8 * num_requests, dtype=torch.int32).reshape(num_requests, 8)
    plan = plan_tree(
        parents,
        node_indptr,
        torch.full((num_requests,), context_len, dtype=torch.int32),
        table,
        block_size=2,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    generator = torch.Generator().manual_seed(0)
    k, v = make_pools("nhd", 1, (8 * num_requests, 2, 1, 4), torch.float32, generator)
    return Batch(k, v, None, None, plan, accepted_path(paths, plan.max_depth + 1))


def test_whole_blocks_are_repointed() -> None:
    # Context 3: root at slot 3; the second chain at slots 8..11 is blocks 4 and 5, due at 2 and 3.
    batch = repointed_batch(3, [[0, 5, 6, 7, 8]])
    assert remap_kv(**batch.arguments()).tolist() == [0]
    assert batch.plan.block_table.tolist() == [[0, 1, 4, 5, 2, 3, 6, 7]]


def test_part_of_a_block_is_copied() -> None:
    batch = repointed_batch(3, [[0, 5, 6, 7]])
    assert remap_kv(**batch.arguments()).tolist() == [1]
    assert batch.plan.block_table.tolist() == [[0, 1, 4, 3, 2, 5, 6, 7]]


def test_misaligned_blocks_are_copied() -> None:
    # Every node of the path is one row too far.
    batch = repointed_batch(3, [[0, 2, 3, 4, 5]], tree=[-1, 0, 0, 2, 3, 4])
    assert remap_kv(**batch.arguments()).tolist() == [4]
    assert batch.plan.block_table.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("status", [3, 4])
def test_nothing_moves_for_status(status: int) -> None:
    batch = repointed_batch(3, [[0, 5, 6], [0, 5, 6]])
    batch.accepted = replace(batch.accepted, status=torch.tensor([status, 0], dtype=torch.int32))
    batch.plan.block_table[0] = UNUSED_ENTRY  # a stale row is not even looked at
    before = copy.deepcopy(batch)
    assert remap_kv(**batch.arguments()).tolist() == [0, 0]
    assert torch.equal(batch.plan.block_table[0], before.plan.block_table[0])
    assert batch.plan.block_table[1].tolist() == [8, 9, 12, 11, 10, 13, 14, 15]


@pytest.mark.parametrize("status", [1, 2])
def test_accepted_part_moves_for_status(status: int) -> None:
    batch = repointed_batch(3, [[0, 5, 6]])
    batch.accepted = replace(batch.accepted, status=torch.tensor([status], dtype=torch.int32))
    remap_kv(**batch.arguments())
    assert batch.plan.block_table.tolist() == [[0, 1, 4, 3, 2, 5, 6, 7]]


def test_nothing_moves_without_a_path() -> None:
    batch = repointed_batch(3, [[0, 5, 6]])
    accepted = accepted_path([None], batch.plan.max_depth + 1, status=[1])
    batch.accepted = accepted
    before = copy.deepcopy(batch)
    assert remap_kv(**batch.arguments()).tolist() == [0]
    assert torch.equal(batch.plan.block_table, before.plan.block_table)


@dataclass(frozen=True)
class Breach:
    name: str
    change: Callable[[Batch], dict[str, Any]]
    message: str

    def __str__(self) -> str:
        return self.name


def _accepted(field: str, index: Any, value: int) -> Callable[[Batch], dict[str, Any]]:
    def change(batch: Batch) -> dict[str, Any]:
        tensor = getattr(batch.accepted, field).clone()
        tensor[index] = value
        return {"accepted": replace(batch.accepted, **{field: tensor})}

    return change


def _plan(field: str, index: Any, value: int) -> Callable[[Batch], dict[str, Any]]:
    def change(batch: Batch) -> dict[str, Any]:
        getattr(batch.plan, field)[index] = value
        return {}

    return change


BREACHES = [
    Breach(
        "shared_block",
        _plan("block_table", (1, 3), 2),
        r"block_table must list a block at or after context_len only once, block 2 is listed "
        r"again at \[1, 3\]",
    ),
    Breach(
        "own_block_twice",
        _plan("block_table", (0, 3), 2),
        r"block_table must list a block .* only once, block 2 is listed again at \[0, 3\]",
    ),
    Breach(
        "committed_elsewhere",
        _plan("block_table", (1, 0), 2),
        r"block_table must list a block .* only once, block 2 is also committed at \[1, 0\]",
    ),
    Breach(
        "table_short",
        lambda b: {"plan": replace(b.plan, block_table=b.plan.block_table[:, :3].contiguous())},
        r"block_table of request 0 must list 4 blocks for context_len 3 and a path of 5, got 3",
    ),
    Breach(
        "block_negative",
        _plan("block_table", (1, 2), -1),
        r"block_table\[1, 2\] .*\[0, 16\), got -1",
    ),
    Breach(
        "block_past_pool",
        _plan("block_table", (1, 2), 16),
        r"block_table\[1, 2\] must be in \[0, 16\), got 16",
    ),
    Breach(
        "slot_past_pool",
        _plan("slot_mapping", 10, 32),
        r"slot_mapping must be in \[0, 32\), node 1 of request 1 got 32",
    ),
    Breach(
        "slot_negative",
        _plan("slot_mapping", 10, -1),
        r"slot_mapping must be in \[0, 32\), node 1 of request 1 got -1",
    ),
    Breach(
        "path_past_tree", _accepted("path", (1, 2), 9), r"path\[1, 2\] must be .* below 9, got 9"
    ),
    Breach(
        "path_descends", _accepted("path", (1, 2), 4), r"path\[1, 2\] must be an ascending .*got 4"
    ),
    Breach(
        "accepted_wide", _accepted("num_accepted", 1, 5), r"num_accepted\[1\] .*\[0, 5\), got 5"
    ),
    Breach(
        "accepted_negative",
        _accepted("num_accepted", 1, -1),
        r"num_accepted\[1\] .*\[0, 5\), got -1",
    ),
    Breach("context_negative", _plan("context_lens", 0, -1), r"context_lens\[0\] .*got -1"),
    Breach("indptr", _plan("node_indptr", 2, 19), r"node_indptr\[2\] must be in \[9, 18\], got 19"),
    Breach(
        "pool_shape",
        lambda b: {"v_caches": [b.v_caches[0], b.v_caches[1][:3]]},
        r"v_caches\[1\] must have shape .* with num_blocks = 16, got \[3, 2, 1, 4\]",
    ),
    Breach(
        "pool_block_size",
        lambda b: {"plan": replace(b.plan, block_size=4)},
        r"k_caches\[0\] must have shape .* with block_size = 4, got \[16, 2, 1, 4\]",
    ),
    Breach(
        "pool_dtype",
        lambda b: {"k_caches": [pool.double() for pool in b.k_caches]},
        r"k_caches\[0\] must be float32 or bfloat16 or float16 or float8_e4m3fn, got float64",
    ),
    Breach(
        "head_dim_strided",
        lambda b: {"k_caches": [b.k_caches[0], b.k_caches[1].repeat(1, 1, 1, 2)[..., ::2]]},
        r"k_caches\[1\] must be contiguous from dimension 3: stride 3 must be 1, got 2",
    ),
    Breach(
        "layers",
        lambda b: {"v_caches": b.v_caches[:1]},
        r"v_caches must have as many layers as k_caches, 2, got 1",
    ),
    Breach("no_layers", lambda b: {"k_caches": []}, r"k_caches must have at least one layer"),
    Breach(
        "scale_layers",
        lambda b: {"k_scales": [torch.zeros(16, 2, 1)]},
        r"k_scales must have as many layers as k_caches, 2, got 1",
    ),
    Breach(
        "scale_heads",
        lambda b: {"v_scales": [torch.zeros(16, 2, 3)] * 2},
        r"v_scales\[0\] must have the 1 heads of its pool, got 3",
    ),
    Breach(
        "path_rows",
        lambda b: {"accepted": replace(b.accepted, path=b.accepted.path[:1])},
        r"path must have shape .* with num_requests = 2, got \[1, 5\]",
    ),
]


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_errors_change_nothing(breach: Breach) -> None:
    batch = repointed_batch(3, [[0, 5, 6, 7], [0, 5, 6]])
    k, v = make_pools("nhd", 2, (16, 2, 1, 4), torch.float32, torch.Generator().manual_seed(1))
    batch.k_caches, batch.v_caches = k, v
    change = breach.change(batch)
    before = copy.deepcopy(batch)
    with pytest.raises(ValueError, match=f"remap_kv: {breach.message}"):
        remap_kv(**{**batch.arguments(), **change})
    assert torch.equal(batch.plan.block_table, before.plan.block_table)
    for got, was in zip(batch.planes(), before.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(was))


def test_compiled_between_reads(machine: str, device: str) -> None:
    """The compiler must see which tensors are written: reads before and after stay in order."""
    batch = make(Case("compiled", layout="stacked"), 1).on(device)
    eager = copy.deepcopy(batch)

    def step(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert isinstance(batch.k_caches, Tensor)
        before = batch.k_caches.nan_to_num(0.0) * 2
        table_before = batch.plan.block_table + 1
        moved = remap_kv(batch.k_caches, batch.v_caches, batch.plan, batch.accepted)
        after = batch.k_caches.nan_to_num(0.0) * 2
        return before, table_before, moved, after + batch.plan.block_table.sum()

    want = step(eager)
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(batch)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(batch.planes(), eager.planes(), strict=True):
        assert torch.equal(bits_of(a), bits_of(b))
    assert torch.equal(batch.plan.block_table, eager.plan.block_table)
