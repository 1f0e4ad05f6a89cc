# SPDX-License-Identifier: Apache-2.0
"""One entry per goal, judged on valid rows, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench import derived
from bench.goals import Goal, Part, judge
from bench.memory import LONG, SHORT, Memory
from bench.row import Row
from bench.trees import DENSITIES

NAMES = (  # the lines of the table of goals, in order
    "attention fp32, n >= 64",
    "attention bf16, n >= 64",
    "n=16, ctx 8k, d128 (cold blocks)",
    "best peer (gather included) / ours",
    "tree only, n=256, depth 8",
    "chain and dense trees",
    "C1 at ctx 0",
    "two-thread scaling",
    "greedy accept [64, 49152]",
    "accept with top-p",
    "remap B=1",
    "extra memory",
)


def row(item: str, ours: float, *, valid: bool = True, **values: Any) -> Row:
    names = ("peers", "gather_us", "extra", "floor_valid")
    fields = {name: values.pop(name) for name in names if name in values}
    floor = values.pop("floor_us", 100.0)
    peers = fields.get("peers", {})
    best = min(peers, key=peers.get) if peers else None
    params = {"threads": 2, "isa": "avx2", "dtype": "fp32", "n": 64, "cold": False, **values}
    return Row(
        item,
        "case",
        ours,
        floor,
        best,
        peers.get(best),
        ours / floor,
        peers[best] / ours if best else None,
        valid,
        params=params,
        **fields,
    )


def attention(ours: float, **values: Any) -> Row:
    return row(values.pop("item", "A2"), ours, **{"model": "32/8 d128", "ctx": 1024, **values})


def goal(rows: list[Row], number: int, memory: Memory | None = None) -> Goal:
    return judge(rows, memory)[number - 1]


def parts(goal: Goal) -> dict[str, float | None]:
    return {part.name: part.value for part in goal.parts}


def test_one_entry_per_goal_and_nothing_judged_without_rows() -> None:
    goals = judge([], None)
    assert len(goals) == len(NAMES)
    for one, name in zip(goals, NAMES, strict=True):
        assert one.name.startswith(name)
        assert set(one.as_dict()) == {"name", "value", "goal", "holds", "parts"}
        assert one.value is None and one.holds is None


def test_median_over_floor_of_valid_rows_on_two_threads() -> None:
    rows = [
        attention(110.0),
        attention(130.0, item="H1"),
        attention(118.0, item="A3", model="9/3 d64"),
        attention(900.0, valid=False),
        attention(900.0, floor_valid=False),
        attention(900.0, threads=1, item="H1"),
        attention(900.0, n=16),
        attention(900.0, item="C2"),
        attention(900.0, isa="portable"),
    ]
    one = goal(rows, 1)
    assert one.value == pytest.approx(1.18) and one.holds is True
    assert goal([*rows, attention(130.0)], 1).holds is False


def test_bf16_has_a_bound_per_head_dim() -> None:
    rows = [
        attention(130.0, dtype="bf16", model="9/3 d64"),
        attention(130.0, dtype="bf16"),
    ]
    one = goal(rows, 2)
    assert [part.holds for part in one.parts] == [False, True]
    assert one.holds is False and one.value == pytest.approx(1.30)
    assert goal(rows[:1], 2).holds is None  # d128 was not measured


def test_cold_rows_have_their_own_goal() -> None:
    rows = [attention(120.0, n=16, cold=True), attention(500.0, n=16)]
    assert parts(goal(rows, 3)) == {"fp32": pytest.approx(1.2), "bf16": None}


def test_peer_ratio_has_a_median_and_a_worst() -> None:
    rows = [attention(100.0, peers={"sdpa": 300.0, "eager": ratio}) for ratio in (130.0, 220.0)]
    rows.append(attention(100.0, peers={"sdpa": 230.0}))
    measured = parts(goal(rows, 4))
    assert measured["fp32 median"] == pytest.approx(2.2)
    assert measured["fp32 worst"] == pytest.approx(1.3)
    assert goal(rows, 4).holds is False


def test_sdpa_comparisons_leave_the_gather_out() -> None:
    peers = {"sdpa_packed": 2600.0, "sdpa_gqa": 2200.0, "eager_packed": 300.0}
    rows = [
        attention(100.0, item="C1", ctx=0, tree="d8-256", peers=peers, gather_us=100.0),
        attention(3000.0, item="C1", ctx=512, tree="chain-256", peers=peers, gather_us=100.0),
        attention(1000.0, item="C1", ctx=512, tree="dense-256", peers=peers, gather_us=100.0),
    ]
    assert parts(goal(rows, 5))["fp32"] == pytest.approx(21.0)
    assert parts(goal(rows, 6)) == {"chain": pytest.approx(0.7), "dense": pytest.approx(2.1)}
    assert goal(rows, 6).holds is False


def test_density_slope() -> None:
    rows = [
        attention(10.0 * work**0.9, item="C1", ctx=0, n=256, tree=tree, floor_us=float(work))
        for tree, work in zip(DENSITIES, (1, 1, 2, 10, 50, 100), strict=True)
    ]
    assert goal(rows[1:], 7).value is None  # without all densities there is no slope
    assert parts(goal(rows, 7)) == {"n=256 fp32": pytest.approx(0.9)}
    assert goal(rows, 7).holds is True
    for one in rows:
        one.ours_us = 7.0
    assert goal(rows, 7).value == pytest.approx(0.0)


def test_scaling_pairs_one_and_two_threads_of_a_shape() -> None:
    rows = [
        attention(200.0, item="H1", threads=1),
        attention(100.0, item="H1"),
        attention(500.0, item="H1", threads=1, ctx=512),
    ]
    assert parts(goal(rows, 8)) == {"fp32": pytest.approx(2.0), "bf16": None}
    rows.append(attention(900.0, item="H1", isa="portable"))  # has no part in the pair
    ratios = derived.scaling(rows, "fp32")
    assert list(ratios.values()) == [pytest.approx(2.0)]


def accept(ours: float, accepted: int, dtype: str, item: str = "P1", **peers: float) -> Row:
    return row(item, ours, dtype=dtype, accepted=accepted, vocab=49152, batch=1, peers=peers)


def test_accept() -> None:
    rows = [
        accept(100.0, 63, "fp32", eager_greedy=1300.0),
        accept(10.0, 4, "fp32", eager_greedy=1300.0, eager_lazy=20.0),
        accept(100.0, 63, "bf16", eager_greedy=5000.0),
        accept(10.0, 4, "bf16", eager_greedy=5000.0),
        accept(1.0, 4, "fp32", "P2", eager_sort=250.0),
        accept(1.0, 63, "fp32", "P2", eager_sort=1.0),
    ]
    assert parts(goal(rows, 9)) == {
        "fp32 all rows": 13.0,
        "bf16 all rows": 50.0,
        "fp32 lazy": 130.0,
        "bf16 lazy": 500.0,
    }
    assert goal(rows, 9).holds is False and goal(rows, 9).value == 50.0
    assert parts(goal(rows, 10)) == {"fp32": 250.0, "bf16": None}


def test_remap() -> None:
    rows = [
        row("R1", 10.0, batch=1, peers={"index_copy_per_layer": 130.0, "index_copy_stacked": 20.0}),
        row("R1", 10.0, batch=8, peers={"index_copy_per_layer": 1.0}),
        row("R2", 10.0, batch=1, path="first_child", extra={"bytes_moved": 0.0}, valid=False),
    ]
    assert parts(goal(rows, 11)) == {"B=1": 13.0, "first child": 0.0}
    assert goal(rows, 11).holds is True
    rows[2].extra["bytes_moved"] = 4.0
    assert goal(rows, 11).holds is False


def test_memory() -> None:
    good = Memory({SHORT: 1000, LONG: 1000}, {SHORT: 300_000, LONG: 301_000})
    assert goal([], 12, good).holds is True and parts(goal([], 12, good))["MB"] == 0.302
    grows = Memory({SHORT: 1000, LONG: 1000}, {SHORT: 300_000, LONG: 400_000})
    assert goal([], 12, grows).holds is False
    large = Memory({SHORT: 1000, LONG: 1000}, {SHORT: 999_000, LONG: 999_000})
    assert goal([], 12, large).holds is False
    assert goal([], 12, Memory({SHORT: 1, LONG: 1}, None)).holds is None


def test_the_value_is_the_part_nearest_to_failing() -> None:
    one = Goal("", "", (), [Part("a", 3.0, ">=", 2.0), Part("b", 1.0, "<=", 1.1)])
    assert one.value == 1.0 and one.holds is True


def test_derived_numbers() -> None:
    rows = [
        attention(50.0 + 3 * ctx / 1024, item="C2", ctx=ctx, floor_us=2 * ctx / 1024)
        for ctx in (1024, 2048, 8192)
    ]
    numbers = derived.summary(rows)
    assert numbers["C2 us per 1k tokens, fp32"] == pytest.approx(3.0)
    assert numbers["C2 slope / floor's slope, fp32"] == pytest.approx(1.5)
    assert derived.slope([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]) is None
    assert derived.slope([(1.0, 1.0), (2.0, 2.0)]) is None
    invalid = [attention(1.0, item="C2", ctx=c, valid=False) for c in (1, 2, 3)]
    assert derived.summary(invalid) == {}
