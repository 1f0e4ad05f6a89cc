# SPDX-License-Identifier: Apache-2.0
"""Merging the trees of several drafters into one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeattn import _host
from treeattn.tree import DraftTree


def merge_trees(trees: Sequence[DraftTree]) -> DraftTree:
    """One tree of all proposals of `trees`, which have one root token (SpecInfer, 2305.09781).

    A token proposed twice below one parent stays two siblings, so that it is tried twice; the
    joint subtree lies below the first. Siblings come in the order of `trees`, then in their own.

    draws: "iid" or "deterministic" when all trees agree on it, else "mixed".
    draft_rows, when "iid": each node was drawn from the row of its parent in its own tree, counted
        in the concatenation of the trees' `draft_probs` ([sum of sizes, V], in the order of
        `trees`). So trees that already carry `draft_rows` are refused: merge all in one call.
    scores, when all trees have them: each node keeps its own, except that the first of equal
        siblings takes the best of theirs, so no child scores above its parent.

    Raises ValueError for an empty list, an empty tree, or different root tokens.
    """
    tokens, parents, tree_ids, node_ids, first = _host.merge_trees(
        [(tree.tokens, tree.parents) for tree in trees]
    )
    kinds = {tree.draws for tree in trees}
    draws = kinds.pop() if kinds in ({"iid"}, {"deterministic"}) else "mixed"
    offsets = np.cumsum([0, *(len(tree) for tree in trees)])
    origin = offsets[tree_ids] + node_ids  # of each node, in the concatenation of the trees

    scores = None
    if all(tree.scores is not None for tree in trees):
        own = np.concatenate([tree.scores for tree in trees if tree.scores is not None])[origin]
        scores = own.copy()
        np.maximum.at(scores, first, own)

    draft_rows = None
    if draws == "iid":
        for i, tree in enumerate(trees):
            if tree.draft_rows is not None:
                raise ValueError(
                    f"trees[{i}] already carries draft_rows; merge all iid trees in one call"
                )
        draft_rows = np.concatenate(
            [offset + tree.parents for offset, tree in zip(offsets, trees, strict=False)]
        )[origin]
        draft_rows[0] = -1
    return DraftTree(tokens, parents, scores, draws, draft_rows)
