# SPDX-License-Identifier: Apache-2.0
"""What LearnedAcceptance counts and says, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from treeattn.cost import FloatArray
from treeattn.schedule.learned import DEPTHS, RANKS, LearnedAcceptance
from treeattn.schedule.prune import path_scores
from treeattn.tree import DraftTree, IntArray


def log_chances(trust: FloatArray, tree: DraftTree) -> FloatArray:
    if len(tree) < 2:
        return np.zeros(len(tree))
    nodes = np.arange(1, len(tree))
    if tree.scores is None:
        trust = np.minimum.accumulate(trust, axis=1)
    chances = np.zeros(len(tree))
    chances[1:] = below_parent(tree)[1:] * trust[cells(tree, nodes)]
    with np.errstate(divide="ignore"):
        scores: FloatArray = np.log(np.minimum(chances, 1.0))
    scores[0] = 0.0
    for depth in range(1, int(tree.depths.max()) + 1):
        level = np.flatnonzero(tree.depths == depth)
        scores[level] += scores[tree.parents[level]]
    return scores


def observe(learned: LearnedAcceptance, tree: DraftTree, emitted: Sequence[int]) -> int:
    """Adds to the tables; nothing is forgotten."""
    path = tree.follow(emitted)
    tried = path[: len(emitted)]
    nodes = np.flatnonzero(np.isin(tree.parents, tried))
    parents = np.unique(tree.parents[nodes])
    np.add.at(learned.tries, np.minimum(tree.depths[parents], DEPTHS - 1), 1)
    np.add.at(learned.said, cells(tree, nodes), below_parent(tree)[nodes])
    np.add.at(learned.seen, cells(tree, nodes), np.isin(nodes, path))
    return max(0, len(path) - 1)


def sibling_ranks(tree: DraftTree) -> IntArray:
    """[N]: how many siblings come before each node."""
    order = np.argsort(tree.parents, kind="stable")
    grouped = tree.parents[order]
    ranks = np.empty(len(tree), dtype=np.int64)
    ranks[order] = np.arange(len(tree)) - np.searchsorted(grouped, grouped)
    return ranks


def cells(tree: DraftTree, nodes: IntArray) -> tuple[IntArray, IntArray]:
    """Row (the parent's depth) and column (the rank) of each of `nodes` in the tables."""
    depths = np.minimum(tree.depths[nodes] - 1, DEPTHS - 1)
    return depths, np.minimum(sibling_ranks(tree)[nodes], RANKS - 1)


def below_parent(tree: DraftTree) -> FloatArray:
    """[N]: the drafter's probability of each node given its parent; 1 without scores."""
    if tree.scores is None:
        return np.ones(len(tree))
    scores = path_scores(tree)
    scores[:1] = 0.0
    below = np.zeros(len(tree))
    known = np.isfinite(scores[tree.parents])
    below[known] = np.exp(np.minimum(scores[known] - scores[tree.parents[known]], 0.0))
    return below
