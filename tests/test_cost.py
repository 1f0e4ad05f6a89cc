# SPDX-License-Identifier: Apache-2.0
"""treeattn.cost: staircases as measured, expected tokens, and the closed forms' known numbers."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import random_parents
from treeattn import cost
from treeattn.cost import Staircase, StepCosts
from treeattn.schedule import sequoia_tree

# An fp32 forward on a CPU, context 256; two rows are slower than four.
MEASURED = {1: 50.4, 2: 90.7, 4: 72.4, 8: 78.5, 16: 95.7}


def test_the_next_measured_size_is_the_price() -> None:
    table = Staircase(MEASURED)
    assert [table(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16)] == [
        50.4, 90.7, 72.4, 72.4, 78.5, 78.5, 95.7, 95.7,
    ]  # fmt: skip
    assert table(17) == math.inf
    assert table.along([16, 3, 17, 1]).tolist() == [95.7, 72.4, math.inf, 50.4]


def test_order_does_not_matter() -> None:
    shuffled = dict(sorted(MEASURED.items(), key=lambda item: item[1], reverse=True))
    assert [Staircase(shuffled)(n) for n in range(1, 18)] == [
        Staircase(MEASURED)(n) for n in range(1, 18)
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -3.0])
def test_what_is_no_time_was_not_measured(bad: float) -> None:
    table = Staircase({1: 50.4, 2: bad, 4: 72.4, 8: bad})
    assert [table(rows) for rows in (1, 2, 4, 5)] == [50.4, 72.4, 72.4, math.inf]
    assert Staircase({1: bad})(1) == math.inf
    assert Staircase({(1, 128): bad})(1, 128) == math.inf


def test_one_point_and_none() -> None:
    assert [Staircase({4: 7.0})(rows) for rows in (1, 4, 5)] == [7.0, 7.0, math.inf]
    assert Staircase({})(1) == math.inf
    assert Staircase({}).along([1, 2], 128).tolist() == [math.inf, math.inf]


TIMES = st.floats(0.1, 9) | st.just(math.nan)


@settings(max_examples=100, deadline=None)
@given(
    verify=st.dictionaries(st.tuples(st.integers(1, 9), st.integers(1, 6)), TIMES, max_size=9),
    accept=st.none() | st.dictionaries(st.integers(1, 9), TIMES, max_size=3),
    remap=st.none() | st.dictionaries(st.integers(1, 12), TIMES, max_size=3),
)
def test_the_step_after_drafting_is_the_sum_of_its_parts(
    verify: dict[tuple[int, int], float],
    accept: dict[int, float] | None,
    remap: dict[int, float] | None,
) -> None:
    tables = [None if points is None else Staircase(points) for points in (accept, remap)]
    costs = StepCosts(Staircase(verify), None, *tables)
    rows = np.arange(1, 15)
    for context in range(1, 9):
        total = Staircase(verify).along(rows, context)
        for table in tables:
            if table is not None:
                total = total + table.along(rows)
        np.testing.assert_array_equal(costs.after_draft(rows, context), total)


@settings(max_examples=100, deadline=None)
@given(
    points=st.dictionaries(
        st.tuples(st.integers(1, 6), st.integers(1, 6)), st.floats(0.1, 9), max_size=12
    )
)
def test_two_dimensions(points: dict[tuple[int, int], float]) -> None:
    """Fewest rows that are enough, of those the shortest context that is enough."""
    table = Staircase(points)
    for rows in range(1, 8):
        for context in range(1, 8):
            enough = [(r, c) for r, c in sorted(points) if r >= rows and c >= context]
            expected = points[enough[0]] if enough else math.inf
            assert table(rows, context) == expected
            assert table.along([rows, rows], context).tolist() == [expected] * 2
            assert table.along(rows, [context, context]).tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({0: 1.0}, r"points must have sizes >= 1 of one length, got \(0,\)"),
        ({(1, 2): 1.0, 3: 1.0}, r"of one length, got \(3,\)"),
        ({(): 1.0}, r"of one length, got \(\)"),
    ],
)
def test_sizes_that_are_none(points: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Staircase(points)


def test_a_size_of_other_dimensions() -> None:
    with pytest.raises(ValueError, match="size must have 2 numbers, got 1"):
        Staircase({(1, 2): 1.0})(1)


def test_a_step_is_the_sum_of_its_parts() -> None:
    costs = cost.StepCosts(
        verify=Staircase({(1, 1024): 10.0, (4, 1024): 12.0, (4, 4096): 20.0}),
        accept=Staircase({4: 0.5}),
        remap=Staircase({1: 0.1, 4: 0.2}),
    )
    assert costs.after_draft([1, 2, 4, 5], 1000).tolist() == [10.6, 12.7, 12.7, math.inf]
    assert costs.after_draft([1], 2000).tolist() == pytest.approx([20.6])


def test_expected_tokens_by_depth_and_rank() -> None:
    #    0 -> 1 -> 2, 3;  0 -> 4 -> 5
    parents = [-1, 0, 1, 1, 0, 4]
    acceptance = [[0.6, 0.2], [0.5, 0.1]]
    assert cost.path_probs(parents, acceptance) == pytest.approx([1, 0.6, 0.3, 0.06, 0.2, 0.1])
    assert cost.expected_tokens(parents, acceptance) == pytest.approx(2.26)


def test_beyond_the_table() -> None:
    """Deeper nodes take the last row; later siblings are never accepted."""
    probs = cost.path_probs([-1, 0, 1, 2, 2], [[0.5], [0.25]])
    assert probs.tolist() == [1, 0.5, 0.125, 0.03125, 0]
    assert cost.expected_tokens([-1, 0, 1], []) == 1.0
    assert cost.expected_tokens([], [[0.5]]) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_expected_tokens_by_walking(seed: int) -> None:
    """Draw what is accepted at each node, many times."""
    rng = random.Random(seed)
    parents = random_parents(rng, 12)
    acceptance = [[0.4, 0.3, 0.1], [0.5, 0.2], [0.6]]
    children = [[c for c, p in enumerate(parents) if p == node] for node in range(len(parents))]
    runs, total = 20_000, 0
    for _ in range(runs):
        node, depth = 0, 0
        while True:
            total += 1
            row = acceptance[min(depth, 2)]
            below = children[node][: len(row)]
            chances = row[: len(below)]
            (chosen,) = rng.choices([*below, -1], [*chances, 1 - sum(chances)])
            if chosen < 0:
                break
            node, depth = chosen, depth + 1
    assert total / runs == pytest.approx(cost.expected_tokens(parents, acceptance), abs=0.03)


def test_one_row_is_what_sequoia_takes() -> None:
    p = [0.6, 0.2, 0.1]
    parents, tokens = sequoia_tree(p, 20, 6)
    assert cost.expected_tokens(parents, [p]) == pytest.approx(tokens, rel=1e-13)


@pytest.mark.parametrize(
    ("parents", "acceptance", "message"),
    [
        ([-1, 0], [[0.5], [0.1, 1.5]], r"acceptance\[1\]\[1\] must be in \[0, 1\], got 1.5"),
        ([-1, 0], [[math.nan]], r"acceptance\[0\]\[0\] must be in \[0, 1\], got nan"),
        ([-1, 1], [[0.5]], r"parents\[1\] must be in \[0, 1\), got 1"),
    ],
)
def test_bad_acceptance(parents: list[int], acceptance: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cost.path_probs(parents, acceptance)


def test_rule_of_thumb() -> None:
    found = [cost.linear_cost(0.6, 0.2, draft) for draft in (3, 4, 5)]
    assert np.round(found, 2).tolist() == [0.89, 0.75, 0.67]
    assert cost.linear_cost(0.0, 0.2, 3) == math.inf
    # It says "pays" exactly when alpha K > 1 + rho K.
    for draft in range(1, 9):
        assert (cost.linear_cost(0.4, 0.2, draft) < 1) == (0.4 * draft > 1 + 0.2 * draft)


def test_geometric_chain() -> None:
    found = [cost.chain_cost(0.6, 0.2, draft) for draft in range(1, 6)]
    assert np.round(found, 3).tolist() == [0.75, 0.714, 0.735, 0.781, 0.839]
    assert min(range(1, 6), key=lambda draft: cost.chain_cost(0.6, 0.2, draft)) == 2
    assert cost.chain_tokens(0.7, 3) == pytest.approx((1 - 0.7**4) / (1 - 0.7))
    assert cost.chain_tokens(1.0, 3) == 4.0
    parents = [-1, 0, 1, 2]
    assert cost.expected_tokens(parents, [[0.7]]) == pytest.approx(cost.chain_tokens(0.7, 3))


def test_measured_tree() -> None:
    tokens = cost.expected_tokens([-1, 0, 1, 0], [[0.6, 0.2]])
    assert tokens == pytest.approx(2.16)
    assert cost.tree_cost(tokens, step_ms=12.0, plain_ms=10.0) == pytest.approx(1.2 / 2.16)
    assert cost.tree_cost(1.0, 10.0, 10.0) == 1.0


def test_acceptance_may_be_an_array() -> None:
    rows = [[0.5, 0.25], [0.75, 0.125]]
    expected = cost.path_probs([-1, 0, 0, 1], rows)
    np.testing.assert_array_equal(cost.path_probs([-1, 0, 0, 1], np.array(rows)), expected)
    assert expected.tolist() == [1.0, 0.5, 0.25, 0.375]
