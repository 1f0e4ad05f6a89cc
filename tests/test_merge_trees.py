# SPDX-License-Identifier: Apache-2.0
"""merge_trees: multiplicity, order, draws, draft rows and scores."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from treeattn.schedule import merge_trees, specinfer
from treeattn.tree import DraftTree


def random_tree(seed: int, draws: str = "deterministic") -> DraftTree:
    """Few tokens, so that trees overlap and siblings repeat."""
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, 14))
    parents = [-1] + [int(rng.integers(0, i)) for i in range(1, num_nodes)]
    tokens = [7] + [int(rng.integers(0, 3)) for _ in range(1, num_nodes)]
    return DraftTree(tokens, parents, draws=draws)


def token_path(tree: DraftTree, node: int) -> tuple[int, ...]:
    return tuple(tree.tokens[tree.path(node)].tolist())


def test_equal_paths_become_one_place_and_every_proposal_a_sibling() -> None:
    a = DraftTree([9, 1, 2], [-1, 0, 1])  # 9 -> 1 -> 2
    b = DraftTree([9, 1, 3, 1, 4], [-1, 0, 1, 0, 3])  # 9 -> (1 -> 3, 1 -> 4)
    merged = merge_trees([a, b])
    assert merged.tokens.tolist() == [9, 1, 2, 1, 3, 1, 4]
    assert merged.parents.tolist() == [-1, 0, 1, 0, 1, 0, 1]
    assert merged.draws == "deterministic"
    assert merged.draft_rows is None
    assert merged.scores is None


@pytest.mark.parametrize("seed", range(40))
def test_merge_of_random_trees(seed: int) -> None:
    trees = [random_tree(10 * seed + i) for i in range(1 + seed % 4)]
    merged = merge_trees(trees)
    # Every proposal is there exactly as often as it was made.
    proposals = Counter(token_path(t, i) for t in trees for i in range(1, len(t)))
    assert Counter(token_path(merged, i) for i in range(1, len(merged))) == proposals
    # The joint subtree hangs below the first of equal siblings.
    for node in range(len(merged)):
        tokens = [int(merged.tokens[child]) for child in merged.children(node)]
        later = [c for i, c in enumerate(merged.children(node)) if tokens[i] in tokens[:i]]
        assert all(merged.children(duplicate) == [] for duplicate in later)
    # Siblings keep the order of the trees, and their own.
    where = {(): 0} | {token_path(merged, i): i for i in range(len(merged) - 1, -1, -1)}
    for node in range(len(merged)):
        path = token_path(merged, node)
        if where[path] != node:
            continue
        expected = [
            int(tree.tokens[child])
            for tree in trees
            for child in range(1, len(tree))
            if token_path(tree, int(tree.parents[child])) == path
        ]
        siblings = [int(merged.tokens[child]) for child in merged.children(node)]
        assert siblings == expected


@settings(max_examples=60, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**31), min_size=2, max_size=4),
    expansion=st.lists(st.integers(1, 3), max_size=3),
    sample=st.booleans(),
)
def test_drafters_keep_their_paths_and_multiplicity(
    seeds: list[int], expansion: list[int], sample: bool
) -> None:
    """Two to four SpecInfer trees over few tokens, so that drafters agree and repeat themselves."""
    laws = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    trees = [
        specinfer(
            lambda tree, nodes, law=laws[i % 2]: law.expand(len(nodes), 3),
            7,
            expansion=expansion,
            sample=sample,
            seed=seed,
        )
        for i, seed in enumerate(seeds)
    ]
    merged = merge_trees(trees)
    proposals = Counter(token_path(t, i) for t in trees for i in range(1, len(t)))
    assert Counter(token_path(merged, i) for i in range(1, len(merged))) == proposals
    paths_with_children = [token_path(merged, i) for i in set(merged.parents[1:].tolist())]
    assert len(set(paths_with_children)) == len(paths_with_children)
    assert merged.draws == ("iid" if sample else "deterministic")
    assert (merged.draft_rows is not None) == sample


def test_sibling_order_is_tree_by_tree() -> None:
    a = DraftTree([9, 5, 1], [-1, 0, 0])
    b = DraftTree([9, 1, 5], [-1, 0, 0])
    merged = merge_trees([a, b])
    assert merged.tokens[merged.children(0)].tolist() == [5, 1, 1, 5]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["iid", "iid"], "iid"),
        (["deterministic", "deterministic"], "deterministic"),
        (["iid", "deterministic"], "mixed"),
        (["swor", "swor"], "mixed"),
        (["pruned", "pruned"], "mixed"),
        (["mixed", "iid"], "mixed"),
        (["iid"], "iid"),
    ],
)
def test_draws(kinds: list[str], expected: str) -> None:
    trees = [DraftTree([9, 1, 2], [-1, 0, 1], draws=kind) for kind in kinds]
    merged = merge_trees(trees)
    assert merged.draws == expected
    assert (merged.draft_rows is not None) == (expected == "iid")


@pytest.mark.parametrize("seed", range(20))
def test_iid_nodes_name_the_law_they_were_drawn_from(seed: int) -> None:
    """Row r of the concatenated laws belongs to one node of one tree: the drawing parent."""
    trees = [random_tree(10 * seed + i, "iid") for i in range(3)]
    merged = merge_trees(trees)
    assert merged.draft_rows is not None
    owners = [(i, node) for i, tree in enumerate(trees) for node in range(len(tree))]
    drawn: Counter[tuple[int, int, int]] = Counter()
    for node in range(1, len(merged)):
        tree_id, parent = owners[merged.draft_rows[node]]
        assert token_path(trees[tree_id], parent) == token_path(merged, int(merged.parents[node]))
        drawn[tree_id, parent, int(merged.tokens[node])] += 1
    expected = Counter(
        (i, int(tree.parents[node]), int(tree.tokens[node]))
        for i, tree in enumerate(trees)
        for node in range(1, len(tree))
    )
    assert drawn == expected


def test_the_first_of_equal_siblings_takes_the_best_score() -> None:
    a = DraftTree([9, 1, 2], [-1, 0, 1], [0.0, -3.0, -4.0])
    b = DraftTree([9, 1, 3], [-1, 0, 1], [0.0, -0.5, -0.75])
    merged = merge_trees([a, b])
    assert merged.tokens.tolist() == [9, 1, 2, 1, 3]
    assert merged.scores is not None
    assert merged.scores.tolist() == [0.0, -0.5, -4.0, -0.5, -0.75]
    assert merge_trees([a, DraftTree.chain([9, 1])]).scores is None


def test_one_tree_is_itself() -> None:
    tree = DraftTree([9, 1, 2, 3], [-1, 0, 0, 1], [0.0, -1.0, -2.0, -3.0])
    assert merge_trees([tree]) == tree


def test_merging_a_superset_keeps_the_shorter_tree_first() -> None:
    chain = DraftTree.chain([9, 1, 2])
    bushy = DraftTree([9, 3, 1, 4], [-1, 0, 0, 2])
    merged = merge_trees([chain, bushy])
    assert merged.tokens[:3].tolist() == [9, 1, 2]
    assert (9, 1, 4) in {token_path(merged, i) for i in range(len(merged))}


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        ([], "trees must hold at least one tree, got an empty list"),
        ([DraftTree.chain([1]), DraftTree([], [])], r"trees\[1\] must have a root"),
        (
            [DraftTree.chain([1]), DraftTree.chain([1]), DraftTree.chain([2])],
            r"trees must have one root token: trees\[0\] has 1, trees\[2\] has 2",
        ),
        (
            [
                DraftTree([1], [-1], draws="iid"),
                DraftTree([1, 2], [-1, 0], draws="iid", draft_rows=[-1, 3]),
            ],
            r"trees\[1\] already carries draft_rows",
        ),
    ],
    ids=["none", "empty", "roots", "rows"],
)
def test_bad_input(trees: list[DraftTree], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        merge_trees(trees)
