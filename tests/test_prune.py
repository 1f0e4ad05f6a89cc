# SPDX-License-Identifier: Apache-2.0
"""prune: what stays, in which order, and what the result may be verified with."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import random_parents
from treeattn.sampling import check_draws
from treeattn.schedule import prune
from treeattn.schedule.prune import fit
from treeattn.tree import DraftTree

TREE = DraftTree(
    [9, 1, 2, 3, 4, 5],
    [-1, 0, 1, 0, 3, 0],
    scores=np.log([1.0, 0.5, 0.25, 0.25, 0.25, 0.125]),
)


def random_tree(seed: int, draws: str = "deterministic") -> DraftTree:
    """Few different log probabilities, 0 and -inf among them, so that scores tie."""
    rng = random.Random(seed)
    parents = random_parents(rng, rng.randint(1, 40))
    scores = [0.0]
    for parent in parents[1:]:
        scores.append(scores[parent] + rng.choice([0.0, -0.5, -0.5, -1.0, -math.inf]))
    return DraftTree([rng.randrange(5) for _ in parents], parents, scores, draws)


def is_within(part: DraftTree, nodes: list[int], whole: DraftTree) -> bool:
    """Whether `part` is `whole` restricted to `nodes`."""
    kept = np.isin(np.arange(len(whole)), nodes)
    rest = whole.keep(kept)
    return (
        np.array_equal(part.tokens, rest.tokens)
        and np.array_equal(part.parents, rest.parents)
        and np.array_equal(part.scores, rest.scores)  # type: ignore[arg-type]
    )


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 45))
def test_the_best_nodes_stay(seed: int, count: int) -> None:
    tree = random_tree(seed)
    assert tree.scores is not None
    best = sorted(range(len(tree)), key=lambda node: (-tree.scores[node], node))[:count]
    assert is_within(prune(tree, num_nodes=count), best, tree)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), min_prob=st.sampled_from([0.0, 1e-9, math.exp(-1), 0.3, 1.0]))
def test_likely_nodes_stay(seed: int, min_prob: float) -> None:
    tree = random_tree(seed)
    assert tree.scores is not None
    likely = [node for node in range(len(tree)) if np.exp(tree.scores[node]) >= min_prob]
    assert is_within(prune(tree, min_prob=min_prob), likely, tree)


def test_both_limits_and_none() -> None:
    assert prune(TREE, min_prob=0.25).tokens.tolist() == [9, 1, 2, 3, 4]
    assert prune(TREE, num_nodes=3).tokens.tolist() == [9, 1, 2]  # 2, 3 and 4 tie
    assert prune(TREE, min_prob=0.25, num_nodes=4).tokens.tolist() == [9, 1, 2, 3]
    assert prune(TREE, min_prob=0.5, num_nodes=4).tokens.tolist() == [9, 1]
    assert prune(TREE) is TREE
    assert prune(TREE, num_nodes=1).parents.tolist() == [-1]


def test_rows_and_slots_are_gone() -> None:
    pruned = prune(TREE, num_nodes=4)
    assert len(pruned) == len(pruned.parents) == 4
    assert pruned.parents.tolist() == [-1, 0, 1, 0]


@pytest.mark.parametrize("draws", ["iid", "swor", "mixed", "pruned"])
@pytest.mark.parametrize(
    "limits", [{"min_prob": 0.0}, {"num_nodes": 99}, {"num_nodes": 3}], ids=str
)
def test_sampled_trees_may_not_meet_a_rejection_rule_again(
    draws: str, limits: dict[str, float]
) -> None:
    """Even when this time nothing was dropped: it was the values that decided."""
    pruned = prune(random_tree(3, draws), **limits)  # type: ignore[arg-type]
    assert pruned.draws == "pruned"
    with pytest.raises(ValueError, match="draws"):
        check_draws("multistep", pruned.draws)
    check_draws("target", pruned.draws)


def test_deterministic_trees_stay_so() -> None:
    assert prune(TREE, num_nodes=2).draws == "deterministic"


@pytest.mark.parametrize("limits", [{"num_nodes": 3}, {"min_prob": 0.45}], ids=str)
def test_no_orphan_when_a_child_outranks_its_parent(limits: dict[str, float]) -> None:
    """By rounding, or because the scores are no path probabilities."""
    tree = DraftTree([9, 1, 2, 3], [-1, 0, 1, 0], [-0.1, -2.0, -0.5, -0.7])
    assert prune(tree, **limits).tokens.tolist() in ([9, 1, 3], [9, 3])  # type: ignore[arg-type]
    assert prune(tree, num_nodes=2).tokens.tolist() == [9, 3]


def test_inactive_request() -> None:
    empty = DraftTree([], [])
    assert len(prune(empty, num_nodes=3)) == 0


@pytest.mark.parametrize(
    ("tree", "limits", "message"),
    [
        (DraftTree.chain([1, 2]), {"num_nodes": 1}, "tree must have scores"),
        (TREE, {"num_nodes": 0}, "num_nodes must be >= 1, the root counts; got 0"),
        (TREE, {"min_prob": 1.5}, r"min_prob must be in \[0, 1\], got 1.5"),
        (TREE, {"min_prob": math.nan}, "min_prob must be"),
    ],
    ids=["scores", "nodes", "prob", "nan"],
)
def test_bad_input(tree: DraftTree, limits: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prune(tree, **limits)  # type: ignore[arg-type]


def test_what_fits_a_budget_and_the_tokens_left() -> None:
    """The likeliest of a scored tree, the first of a drawn one; node 2 and 4 are two deep."""
    drawn = DraftTree(TREE.tokens, TREE.parents, TREE.scores, "iid")
    unscored = DraftTree(TREE.tokens, TREE.parents)
    assert fit(TREE, 6, 3) is TREE
    assert fit(TREE, 3, 3).tokens.tolist() == [9, 1, 2]  # of three equal ones the first
    assert fit(TREE, 5, 3).tokens.tolist() == [9, 1, 2, 3, 4]
    assert fit(TREE, 6, 2).tokens.tolist() == [9, 1, 3, 5]
    assert fit(TREE, 3, 2).tokens.tolist() == [9, 1, 3]
    assert fit(TREE, 6, 1).tokens.tolist() == [9]
    last = DraftTree([9, 1, 2], [-1, 0, 0], np.log([1.0, 0.1, 0.9]))
    assert fit(last, 2, 9).tokens.tolist() == [9, 2]
    for tree in (drawn, unscored):
        assert fit(tree, 2, 9).tokens.tolist() == [9, 1]
        assert fit(tree, 2, 9).draws == tree.draws
    swor = DraftTree([9, 1, 2], [-1, 0, 0], np.log([1.0, 0.1, 0.9]), "swor")
    kept = fit(swor, 2, 9)
    assert kept.tokens.tolist() == [9, 1] and kept.draws == "swor"
