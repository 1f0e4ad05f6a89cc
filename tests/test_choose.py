# SPDX-License-Identifier: Apache-2.0
"""schedule.choose: most tokens per second by measured times, off among the answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from treeattn.schedule import choose

VALUES = {1: 1.0, 4: 2.2, 8: 2.6, 16: 2.9}
DEPTHS = {1: 0, 4: 2, 8: 3, 16: 4}
FLAT = {1: 10.0, 4: 10.4, 8: 11.0, 16: 14.0}


def chosen(verify_ms: dict[int, float] = FLAT, **changes: Any) -> int:
    given: dict[str, Any] = {"values": VALUES, "draft_ms_per_level": 0.5, "depths": DEPTHS}
    given.update(changes)
    return choose(given.pop("values"), verify_ms, **given)


def test_the_best_rate_wins() -> None:
    rates = {n: VALUES[n] / (FLAT[n] + 0.5 * DEPTHS[n]) for n in VALUES}
    assert chosen() == max(rates, key=lambda n: rates[n]) == 8


@settings(max_examples=200, deadline=None)
@given(
    values=st.dictionaries(st.integers(1, 40), st.floats(0.1, 9), max_size=8),
    verify_ms=st.dictionaries(st.integers(1, 40), st.floats(0.1, 99), max_size=8),
    draft_ms=st.floats(0, 5),
    max_nodes=st.none() | st.integers(1, 40),
)
def test_no_candidate_is_faster(
    values: dict[int, float], verify_ms: dict[int, float], draft_ms: float, max_nodes: int | None
) -> None:
    depths = {nodes: nodes.bit_length() - 1 for nodes in values}
    rates = {1: 0.0}
    for nodes in {1, *values}:
        larger = [size for size in verify_ms if size >= nodes]
        if larger and (max_nodes is None or nodes <= max_nodes):
            ms = verify_ms[min(larger)] + draft_ms * (nodes.bit_length() - 1)
            rates[nodes] = values.get(nodes, 1.0) / ms
    best = max(rates.values())
    expected = min(nodes for nodes in rates if rates[nodes] == best)
    found = choose(
        values, verify_ms, draft_ms_per_level=draft_ms, depths=depths, max_nodes=max_nodes
    )
    assert found == expected


def test_off_where_the_table_says_so() -> None:
    """Acceptance stays; only the cost of rows grows with the batch."""
    answers = []
    for batch in (1, 8, 32, 64, 128):
        free_rows = 128  # until then weights are the cost, from there on each row
        table = {n: 10.0 * max(1.0, batch * n / free_rows) for n in VALUES}
        answers.append(chosen(table))
    assert answers == [16, 16, 4, 4, 1]


def test_a_dip_in_the_table_is_used() -> None:
    measured = {1: 50.4, 2: 90.7, 4: 72.4, 8: 78.5}
    values, depths = {1: 1.0, 2: 1.6, 4: 1.7}, {2: 1, 4: 2}
    assert choose(values, measured, draft_ms_per_level=0.0, depths=depths) == 4


def test_between_measured_sizes() -> None:
    """A tree of 5 costs what 8 rows cost; of 17, nobody knows."""
    assert chosen(values={5: 2.6}, depths={5: 2}) == 5
    assert chosen({1: 10.0, 4: 10.4, 8: 30.0}, values={5: 2.6}, depths={5: 2}) == 1
    assert chosen(values={17: 99.0}, depths={17: 4}) == 1


def test_never_above_what_fits() -> None:
    assert [chosen(max_nodes=limit) for limit in (1, 3, 4, 7, 8, 99)] == [1, 1, 4, 4, 8, 8]


def test_ties_go_to_the_smaller_size() -> None:
    same = {"values": {4: 2.0, 8: 2.0}, "depths": {4: 1, 8: 1}}
    assert chosen({1: 10.0, 8: 11.0}, **same) == 4
    assert chosen({1: 5.0, 8: 10.0}, **same, draft_ms_per_level=0.0) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_bad_times(bad: float) -> None:
    assert chosen({1: 10.0, 4: bad, 8: 11.0, 16: 50.0}) == 8
    assert chosen({1: 10.0, 4: bad, 8: bad, 16: bad}) == 1
    assert chosen({1: bad, 4: bad}) == 1
    assert chosen({1: bad, 4: 10.4}) == 4  # the price of one row, too


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_values(bad: float) -> None:
    assert chosen(values={**VALUES, 8: bad}) in (4, 16)
    assert chosen(values={1: bad, 4: 0.9}) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5])
def test_without_a_draft_time_it_is_off(bad: float) -> None:
    assert chosen(draft_ms_per_level=bad) == 1


def test_one_point_and_no_point() -> None:
    assert chosen({16: 10.0}, draft_ms_per_level=0.0) == 16
    assert chosen({1: 10.0}) == 1
    assert chosen({}) == 1
    assert chosen(values={}) == 1


def test_unsorted_tables() -> None:
    assert chosen(dict(reversed(FLAT.items())), values=dict(reversed(VALUES.items()))) == chosen()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": {4: 2}}, r"depths\[8\] must be >= 0, got None"),
        ({"depths": {4: -1}}, r"depths\[4\] must be >= 0, got -1"),
        ({"values": {0: 1.0}}, "values must be of sizes >= 1, got 0"),
        ({"max_nodes": 0}, "max_nodes must be >= 1, got 0"),
        ({"verify_ms": {0: 1.0}}, "points must have sizes >= 1"),
    ],
    ids=["missing", "negative", "value", "max", "table"],
)
def test_bad_sizes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(**changes)
