# SPDX-License-Identifier: Apache-2.0
"""remap_kv as devices run it: what it reads and writes, and what only they say."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import simt
from support.accepted import accepted_path
from support.paged import bits_of
from support.remap import CASES, Batch, Case, make
from support.trees import pack_parents
from torch import Tensor
from treeattn import ops, reference
from treeattn.ops import remap_kv
from treeattn.plan import plan_tree


@pytest.fixture(params=simt.ORDERS)
def emulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, request.param)


def counted(batch: Batch) -> tuple[Tensor, dict[str, int]]:
    simt.take_counters()
    with simt.poisoned_outputs():  # so that what is read does not depend on what was there
        moved = remap_kv(**batch.arguments())
    return moved, simt.take_counters()


# More requests than one CTA plans, tables longer than one CTA looks through, more planes than the
# smaller kernel takes.
LARGE = [
    *(Case(f"{n}_requests", sizes=(5,) * n, block_size=2, num_layers=1) for n in (1, 8, 9, 45)),
    Case("many_requests", sizes=(5, 0, 7, 6) * 11, block_size=2, num_layers=1),
    Case("many_custom", sizes=(5, 0, 7, 6) * 11, custom_slots=True, num_layers=1),
    Case("many_planes", num_layers=50, block_size=2),
    Case("many_planes_custom", num_layers=50, custom_slots=True),
    Case("deep", sizes=(90, 3), branching=0.1, block_size=2),
    Case("many_planes_scales", num_layers=50, scales=True, dtype=torch.float8_e4m3fn),
    Case("wide_rows", num_heads=6, head_dim=200),
    Case("wide_rows_custom", sizes=(5,) * 9, num_heads=6, head_dim=200, custom_slots=True),
]


def assert_equal(batch: Batch, want: Batch) -> None:
    assert torch.equal(batch.plan.block_table, want.plan.block_table)
    for got, expected in zip(batch.planes(), want.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(expected))


@pytest.mark.parametrize("case", [*LARGE, *CASES], ids=str)
def test_one_launch(case: Case, emulator: None) -> None:
    for seed in range(2):
        batch = make(case, seed)
        want = copy.deepcopy(batch)
        moved, counters = counted(batch)
        assert torch.equal(moved, reference.remap_kv(**want.arguments()))
        assert_equal(batch, want)
        assert counters["launches"] == (1 if case.sizes else 0)


@pytest.mark.parametrize("columns", [8, 3000])
@pytest.mark.parametrize("num_requests", [3, 20])
def test_long_tables(num_requests: int, columns: int, emulator: None) -> None:
    """Tables wider than what they list, which one CTA looks through, or several per request."""
    batch = make(Case("tables", sizes=(5,) * num_requests, num_layers=1), 2)
    table = batch.plan.block_table
    wide = torch.full((num_requests, table.shape[1] + columns), 2**30, dtype=torch.int32)
    wide[:, : table.shape[1]] = table
    batch.plan = replace(batch.plan, block_table=wide)
    want = copy.deepcopy(batch)
    moved, counters = counted(batch)
    assert torch.equal(moved, reference.remap_kv(**want.arguments()))
    assert_equal(batch, want)
    assert counters["launches"] == 1


@pytest.mark.parametrize("custom", [False, True], ids=["default", "custom"])
def test_more_planes_than_a_launch_has_room_for(custom: bool, emulator: None) -> None:
    """Each launch plans anew, and only the last changes what a plan depends on."""
    kind = Case("", sizes=(30, 4), branching=0.2, block_size=2, custom_slots=custom)
    batch = make(replace(kind, num_layers=300, num_heads=1), 1)
    want, table = copy.deepcopy(batch), batch.plan.block_table.clone()
    moved, counters = counted(batch)
    assert torch.equal(moved, reference.remap_kv(**want.arguments())) and moved.any()
    assert torch.equal(batch.plan.block_table, table) == custom
    assert_equal(batch, want)
    assert counters["launches"] == 2


@pytest.mark.parametrize("num_requests", [3, 20], ids=["one_planner", "planners"])
@pytest.mark.parametrize("remade", [False, True], ids=["work_of_the_plan", "work_of_the_call"])
def test_calls_one_after_the_other(num_requests: int, remade: bool, emulator: None) -> None:
    """Each call leaves the plan's counters as the next one needs them; each as the oracle's."""
    case = Case("again", sizes=(9,) * num_requests, num_layers=1, custom_slots=True)
    batch = make(case, 3)
    if remade:
        batch.plan = replace(batch.plan, work=None)
    want = copy.deepcopy(batch)
    first = batch.k_caches[0].clone()
    for call in range(4):
        moved, counters = counted(batch)
        assert torch.equal(moved, reference.remap_kv(**want.arguments())) and moved.any()
        assert_equal(batch, want)
        assert counters["launches"] == 1
        assert not torch.equal(bits_of(batch.k_caches[0]), bits_of(first))
        if batch.plan.work is not None:  # the turn, nobody counted, and the same turn
            turn = 1 - call % 2
            assert batch.plan.work[:4].tolist() == [-turn * 2**31, 0, 0, turn]


# Counters 0 tickets, 1 claimed, 2 arrived; of 3 requests one CTA plans, and counts no claims.
@pytest.mark.parametrize(("num_requests", "counter"), [(3, 0), (3, 2), (20, 0), (20, 1), (20, 2)])
def test_a_counter_that_is_left_shows(
    num_requests: int, counter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test before relies on: who finds a counter that is not reset waits for nobody."""
    simt.use(monkeypatch, "forward")
    batch = make(Case("left", sizes=(9,) * num_requests, num_layers=1), 3)
    assert batch.plan.work is not None
    batch.plan.work[counter] += 1
    with pytest.raises(RuntimeError, match="wait_until_equal: no CTA before this one has made it"):
        remap_kv(**batch.arguments())


def test_work_must_hold_the_counters(emulator: None) -> None:
    batch = make(Case("work", num_layers=1), 0)
    batch.plan = replace(batch.plan, work=torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"remap_kv: work must have at least 4 elements .* got 3"):
        remap_kv(**batch.arguments())


@pytest.mark.parametrize("custom", [False, True], ids=["default", "custom"])
@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_exactly_the_misplaced_rows_move(block_size: int, custom: bool, emulator: None) -> None:
    """Bytes that grow with head_dim are those of the rows that moved: one read, one write each."""
    for seed in range(4):
        counters = {}
        for head_dim in (8, 72):
            case = Case("bytes", block_size=block_size, head_dim=head_dim, custom_slots=custom)
            moved, counters[head_dim] = counted(make(case, seed))
        planes, heads = 2 * case.num_layers, case.num_heads
        rows = int(moved.sum()) * planes
        assert counters[72]["rows_moved"] == rows
        more = rows * heads * (72 - 8) * 4
        # Each thread looks at its list of moves; a row of more columns has more threads.
        columns = heads * (72 - 8) * 4 // 16 * planes
        written = counters[72]["global_bytes_written"] - counters[8]["global_bytes_written"]
        assert written == more
        read = counters[72]["global_bytes_read"] - counters[8]["global_bytes_read"]
        lists, rest = divmod(read - more, 2 * 16 * columns)
        assert rest == 0
        assert lists == moved.sum() or (custom and moved.sum() < lists <= 1.5 * moved.sum())
        if block_size == 1 and not custom:
            assert rows == 0


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_nothing_of_the_first_child_path_moves(block_size: int, emulator: None) -> None:
    batch = make(Case("chain", branching=0.0, block_size=block_size, head_dim=64), 0)
    before = copy.deepcopy(batch)
    moved, counters = counted(batch)
    assert moved.sum() == 0 and counters["rows_moved"] == 0
    wider = make(Case("chain", branching=0.0, block_size=block_size, head_dim=512), 0)
    _, more = counted(wider)
    assert more["global_bytes_written"] == counters["global_bytes_written"]
    assert torch.equal(batch.plan.block_table, before.plan.block_table)
    for got, was in zip(batch.planes(), before.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(was))


@pytest.mark.parametrize("custom", [False, True], ids=["default", "custom"])
def test_the_same_bits_in_every_order(custom: bool) -> None:
    def run() -> tuple[Tensor, ...]:
        batch = make(Case("orders", sizes=(12, 20, 3, 9), custom_slots=custom, block_size=2), 4)
        moved = remap_kv(**batch.arguments())
        return moved, batch.plan.block_table, *map(bits_of, batch.planes())

    simt.assert_same_in_every_order(run)


def test_one_kind_of_circle_after_the_other(emulator: None) -> None:
    """Rows that change places, in one request and across two, in one batch of moves."""
    batch = make(Case("circles", sizes=(4, 4, 4), branching=0.0, block_size=4, num_layers=1), 1)
    table, plan = batch.plan.block_table, batch.plan
    places = [
        int(table[b, (int(plan.context_lens[b]) + i) // 4]) * 4
        + (int(plan.context_lens[b]) + i) % 4
        for b in range(3)
        for i in range(4)
    ]
    turned = [1, 0, 3, 2, 8, 5, 4, 9, 6, 10, 7, 11]  # node i lies where node turned[i] is due
    plan.slot_mapping.copy_(torch.tensor([places[t] for t in turned]))
    batch.accepted = accepted_path([[0, 1, 2, 3]] * 3, plan.max_depth + 1)
    want = copy.deepcopy(batch)
    moved = remap_kv(**batch.arguments())
    assert torch.equal(moved, reference.remap_kv(**want.arguments()))
    for got, expected in zip(batch.planes(), want.planes(), strict=True):
        assert torch.equal(bits_of(got), bits_of(expected))


def _accepted(field: str, index: Any, value: int) -> Callable[[Batch], None]:
    def change(batch: Batch) -> None:
        tensor = getattr(batch.accepted, field).clone()
        tensor[index] = value
        batch.accepted = replace(batch.accepted, **{field: tensor})

    return change


def _plan(field: str, index: Any, value: int) -> Callable[[Batch], None]:
    def change(batch: Batch) -> None:
        getattr(batch.plan, field)[index] = value

    return change


def _lists_again(entry: int) -> Callable[[Batch], None]:
    """Request 1 lists at `entry` the block that request 2 writes its root to."""

    def change(batch: Batch) -> None:
        first = int(batch.plan.context_lens[2]) // 2
        batch.plan.block_table[1, entry] = batch.plan.block_table[2, first]

    return change


# Three requests of context 3 and block size 2: the path starts in entry 1.
REFUSED: dict[str, tuple[Callable[[Batch], None], list[int]]] = {
    "path_past_tree": (_accepted("path", (1, 2), 9), [1]),
    "path_descends": (_accepted("path", (1, 2), 4), [1]),
    "accepted_wide": (_accepted("num_accepted", 1, 5), [1]),
    "accepted_negative": (_accepted("num_accepted", 1, -1), [1]),
    "context_negative": (_plan("context_lens", 1, -1), [1]),
    "context_past_table": (_plan("context_lens", 1, 12), [1]),
    "block_negative": (_plan("block_table", (1, 2), -1), [1]),
    "block_past_pool": (_plan("block_table", (1, 2), 10**6), [1]),
    "slot_past_pool": (_plan("slot_mapping", 10, 10**6), [1]),
    "slot_negative": (_plan("slot_mapping", 10, -1), [1]),
    "indptr": (_plan("node_indptr", 3, 10**6), [2, 3]),
    "shared_block": (_lists_again(3), [1, 2]),
    "own_block_twice": (_plan("block_table", (1, 3), 10), [1]),
    "committed_elsewhere": (_lists_again(0), [2]),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("num_more", [0, 40], ids=["one_cta", "two_ctas"])
def test_what_only_the_device_sees_is_status_4(name: str, num_more: int, emulator: None) -> None:
    """The refused request stays as it is, bit by bit; the others move as if it were not there."""
    from test_remap_kv import repointed_batch

    change, refused = REFUSED[name]
    paths = [[0, 5, 6, 7], [0, 5, 6, 7], [0, 5, 6, 7]]
    batch = repointed_batch(3, paths + [[0, 5]] * num_more)
    change(batch)
    before = copy.deepcopy(batch)
    clean = repointed_batch(3, paths + [[0, 5]] * num_more)
    want = clean.planes()
    moved_clean = remap_kv(**clean.arguments())
    moved = remap_kv(**batch.arguments())
    for b in range(3 + num_more):
        stays = b in refused
        assert batch.accepted.status[b] == (4 if stays else 0), b
        assert moved[b] == (0 if stays else moved_clean[b]), b
        table = before.plan.block_table[b] if stays else clean.plan.block_table[b]
        if not (name == "committed_elsewhere" and b == 1):
            assert torch.equal(batch.plan.block_table[b], table), b
        rows = slice(8 * b, 8 * b + 8)
        for got, was, wanted in zip(batch.planes(), before.planes(), want, strict=True):
            assert torch.equal(bits_of(got[rows]), bits_of((was if stays else wanted)[rows])), b


def test_garbage_in_the_workspace_is_not_believed(emulator: None) -> None:
    """Names of owners left by an earlier call, or by anything, refuse nobody."""
    batch = make(Case("names", sizes=(9, 14, 3), block_size=2), 2)
    allocate = ops._remap_workspace
    for name in range(0, 40, 3):

        def filled(*arguments: Any, name: int = name) -> Tensor:
            workspace = allocate(*arguments)
            assert workspace is not None
            return workspace.fill_(name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "_remap_workspace", filled)
            again = copy.deepcopy(batch)
            remap_kv(**again.arguments())
        assert again.accepted.status.tolist() == [0, 0, 0]


def one_path(pool: Tensor, tree: list[int], path: list[int], block_size: int) -> list[int]:
    """Moves the path of one request whose table is 0, 1, ..., without context; the rows' marks."""
    parents, node_indptr = pack_parents([tree])
    plan = plan_tree(
        parents,
        node_indptr,
        torch.zeros(1, dtype=torch.int32),
        torch.arange(pool.shape[0], dtype=torch.int32)[None],
        block_size=block_size,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    for i in range(len(tree)):
        pool[i // block_size, i % block_size] = i
    remap_kv([pool], [pool.clone()], plan, accepted_path([path], plan.max_depth + 1))
    return [int(pool[k // block_size, k % block_size, 0, 0]) for k in range(len(path))]


def test_a_long_path_of_misplaced_rows(emulator: None) -> None:
    """More rows than a warp has lanes and than a thread moves at once, each one row too far."""
    tree = [-1, 0, 0, *range(2, 99)]
    path = [0, *range(2, 100)]
    assert one_path(torch.zeros(25, 4, 1, 8), tree, path, 4) == path


@pytest.mark.parametrize("wide", ["block", "row"])
def test_strides_beyond_32_bits(wide: str, emulator: None) -> None:
    stride = 2**31
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = torch.frombuffer(mmap.mmap(-1, 8 * stride, flags=flags), dtype=torch.bfloat16)
    except OSError as error:
        pytest.skip(f"no address space here: {error}")
    strides = (stride, 64, 8, 1) if wide == "block" else (64, stride, 8, 1)
    pool = memory.as_strided((2, 2, 1, 8), strides)
    values = memory.new_zeros(2, 2, 1, 8)  # V, dense
    parents, node_indptr = pack_parents([[-1, 0, 0, 2]])
    plan = plan_tree(
        parents, node_indptr, torch.zeros(1).int(), torch.tensor([[0, 1]]).int(),
        block_size=2, num_qo_heads=1, num_kv_heads=1,
    )  # fmt: skip
    for i in range(4):
        pool[i // 2, i % 2] = i
    moved = remap_kv([pool], [values], plan, accepted_path([[0, 2, 3]], plan.max_depth + 1))
    assert moved.tolist() == [2]
    assert [int(pool[k // 2, k % 2, 0, 0]) for k in range(3)] == [0, 2, 3]
