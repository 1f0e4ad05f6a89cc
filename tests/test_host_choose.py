# SPDX-License-Identifier: Apache-2.0
"""What choosing and learning in C++ refuse: nothing past the end of an array is ever touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from treeattn import _host
from treeattn.cost import Staircase, StepCosts
from treeattn.schedule import LearnedAcceptance, choose_batch
from treeattn.schedule.budget import choose_nodes
from treeattn.tree import DraftTree

TREE = DraftTree([9, 1, 2, 3], [-1, 0, 0, 1], np.log([1.0, 0.6, 0.3, 0.5]))
COSTS = StepCosts(Staircase({(rows, 99): 9.0 + rows for rows in range(1, 20)}))


def of_tree(**changes: Any) -> dict[str, Any]:
    names = ("tokens", "parents", "depths", "scores")
    return {**{name: getattr(TREE, name) for name in names}, **changes}


def of_forest(**changes: Any) -> dict[str, Any]:
    """Two requests with the same tree."""
    arrays = {name: np.tile(getattr(TREE, name), 2) for name in ("parents", "depths", "scores")}
    return {
        "offsets": np.array([0, 4, 8]),
        **arrays,
        "verify_ms": np.linspace(1, 2, 7),
        "draft_ms": np.full((2, 9), 0.01),
        "max_nodes": np.array([4, 4]),
        "max_depths": np.array([2, 2]),
        "max_ms": 9.0,
        **changes,
    }


I32 = np.int32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": np.zeros(5)}, "scores must have 4 entries, got 5"),
        ({"tokens": np.zeros(3, np.int64)}, "tokens must have 4 entries, got 3"),
        ({"depths": np.zeros(3, I32)}, "depths must have 4 entries, got 3"),
        ({"parents": np.array([-1, -1, 0, 1], I32)}, r"parents\[1\] must be in \[0, 1\), got -1"),
        ({"parents": np.array([-1, 0, 9, 1], I32)}, r"parents\[2\] must be in \[0, 2\), got 9"),
        ({"depths": np.array([0, 1, 1, 7], I32)}, r"depths\[3\] must be 2, got 7"),
        ({"depths": np.array([1, 1, 1, 2], I32)}, r"depths\[0\] must be 0, got 1"),
    ],
)
def test_trees(changes: dict[str, Any], message: str) -> None:
    tables = [np.zeros((8, 4)), np.zeros((8, 4)), np.zeros(8)]
    with pytest.raises(ValueError, match=message):
        _host.log_chances(**of_tree(**changes), trust=np.ones((8, 4)))
    with pytest.raises(ValueError, match=message):
        _host.observe(*of_tree(**changes).values(), np.array([1]), *tables)
    assert not any(table.any() for table in tables)


@pytest.mark.parametrize("shape", [(8, 0), (0, 4), (32,)])
def test_tables(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"trust must be \[depths, ranks\]"):
        _host.log_chances(**of_tree(), trust=np.ones(shape))
    said, tries = np.zeros((8, 4)), np.zeros(8)
    for tables, message in (
        ((np.zeros(shape), said, tries), r"said must be \[depths, ranks\]"),
        ((said, np.zeros(0), tries), "seen must have 32 entries, got 0"),
        ((said, said, np.zeros(7)), "tries must have 8 entries, got 7"),
    ):
        with pytest.raises(ValueError, match=message):
            _host.observe(*of_tree().values(), np.array([1]), *tables)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": np.array([0, 4, 10**8])}, "offsets must ascend from 0 to 8"),
        ({"offsets": np.array([0, 9, 8])}, "offsets must ascend from 0 to 8"),
        ({"offsets": np.array([1, 4, 8])}, "offsets must ascend from 0 to 8"),
        ({"offsets": np.zeros(0, np.int64)}, "offsets must ascend from 0 to 8"),
        ({"offsets": np.array([0, 3, 8])}, r"depths\[0\] must be 0, got 2"),
        ({"depths": np.zeros(7, I32)}, "depths must have 8 entries, got 7"),
        ({"scores": np.zeros(9)}, "scores must have 8 entries, got 9"),
        (
            {"scores": np.full(8, np.nan)},
            r"got scores\[0\] = nan",
        ),
        ({"verify_ms": np.zeros(0)}, "verify_ms must have one entry at least"),
        ({"draft_ms": np.ones((1, 9))}, "draft_ms must be .* at least 2 levels and widths up to 8"),
        ({"draft_ms": np.ones((2, 8))}, "draft_ms must be .* at least 2 levels and widths up to 8"),
        ({"draft_ms": np.ones(18)}, "draft_ms must be"),
        ({"max_nodes": np.array([4])}, "max_nodes must have 2 entries, got 1"),
        ({"max_depths": np.array([4, 4, 4])}, "max_depths must have 2 entries, got 3"),
    ],
)
def test_forests(changes: dict[str, Any], message: str) -> None:
    assert _host.choose_nodes(**of_forest())[0].sum() > 2
    with pytest.raises(ValueError, match=message):
        _host.choose_nodes(**of_forest(**changes))


def test_scores_in_place_of_the_trees_own() -> None:
    """By the other scores the second child is the better one."""
    other = np.log([1.0, 0.1, 0.9, 0.05])
    costs = StepCosts(Staircase({(1, 99): 10.0, (2, 99): 10.5, (9, 99): 99.0}))
    plan = choose_nodes([TREE, None], [other, None], costs, context=1)
    assert [mask.tolist() for mask in plan.masks] == [[True, False, True, False], []]
    assert plan.tokens == pytest.approx(1.9) and (plan.rows, plan.depth) == (2, 1)
    (kept,) = choose_batch([TREE], costs, context=1).trees
    assert kept is not None and kept.tokens.tolist() == [9, 1]


@pytest.mark.parametrize(
    ("scores", "shape"), [(None, "None"), (np.zeros(1), r"\[1\]"), (np.zeros((4, 1)), r"\[4, 1\]")]
)
def test_scores_that_are_missing_or_too_few(scores: Any, shape: str) -> None:
    with pytest.raises(ValueError, match=rf"scores\[1\] must be \[4\] float64, got {shape}"):
        choose_nodes([TREE, TREE], [TREE.scores, scores], COSTS, context=1)


def test_strided_input_is_taken() -> None:
    limits = np.array([2, 7, 4, 7])[::2]
    plan = choose_batch([TREE, TREE], COSTS, context=1, max_nodes=limits, max_depths=limits[::-1])
    assert plan.rows <= 6
    strided, dense = LearnedAcceptance(), LearnedAcceptance()
    assert strided.observe(TREE, np.array([1, 0, 3, 0])[::2]) == dense.observe(TREE, [1, 3]) == 2
    assert (strided.said == dense.said).all() and strided.said.any()
    with pytest.raises(ValueError, match="emitted must have one dimension, got 2"):
        strided.observe(TREE, [[1, 3]])  # type: ignore[list-item]
