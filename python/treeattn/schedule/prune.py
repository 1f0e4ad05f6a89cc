# SPDX-License-Identifier: Apache-2.0
"""Dropping the nodes of a tree that are not worth verifying."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from treeattn.tree import DraftTree


def prune(
    tree: DraftTree, *, min_prob: float | None = None, num_nodes: int | None = None
) -> DraftTree:
    """`tree` without its least likely nodes: their rows and slots are gone, so is their cost.

    min_prob: keeps nodes whose path has at least this probability, exp(scores) >= min_prob.
    num_nodes: keeps the best of `scores`, the root counted; ties go to the smaller index.
    With both, what satisfies both; with neither, everything. The root always stays, the order too.
    A node that scores above its parent (rounding) counts as its parent does, so none is orphaned.

    `draws` becomes "pruned" unless it is "deterministic": choosing by the values that were drawn
    biases the rejection rules, and "pruned" goes with greedy, target and typical only.
    Raises ValueError without scores, for min_prob outside [0, 1], or for num_nodes < 1.
    """
    if min_prob is not None and not 0.0 <= min_prob <= 1.0:
        raise ValueError(f"min_prob must be in [0, 1], got {min_prob}")
    if num_nodes is not None and num_nodes < 1:
        raise ValueError(f"num_nodes must be >= 1, the root counts; got {num_nodes}")
    if len(tree) == 0 or (min_prob is None and num_nodes is None):
        return tree
    scores = path_scores(tree)
    kept = np.ones(len(tree), dtype=np.bool_)
    if min_prob is not None:
        kept = np.exp(scores) >= min_prob
        kept[0] = True
    if num_nodes is not None:
        kept &= _best(scores, num_nodes)
    return drop(tree, kept)


def fit(tree: DraftTree, num_nodes: int, room: int) -> DraftTree:
    """What of a draft may be verified: at most num_nodes, the root counted, and no node of depth
    `room` or more: of `room` tokens left the last comes from the target itself.

    The likeliest nodes stay; of a drawn tree, or one without scores, the first.
    """
    if (tree.depths >= room).any():
        tree = tree.keep(tree.depths < room)
    if len(tree) <= num_nodes:
        return tree
    if tree.scores is None or tree.draws != "deterministic":
        return tree.keep(np.arange(len(tree)) < num_nodes)
    return prune(tree, num_nodes=num_nodes)


def likeliest_chain(tree: DraftTree) -> DraftTree:
    """The path of the likeliest child at every node (without scores the first one), as a tree."""
    kept = np.zeros(len(tree), dtype=np.bool_)
    kept[:1] = True
    node, children = 0, tree.children(0) if len(tree) > 0 else []
    while children:
        node = children[0]
        if tree.scores is not None:
            node = max(children, key=tree.scores.__getitem__)
        kept[node] = True
        children = tree.children(node)
    return drop(tree, kept)


def path_scores(tree: DraftTree) -> npt.NDArray[np.float64]:
    """[N]: the scores, none above its parent's; ValueError when the tree has none."""
    if tree.scores is None:
        raise ValueError("tree must have scores, the log probabilities of its paths; got None")
    scores: npt.NDArray[np.float64] = tree.scores.copy()
    scores[:1] = np.inf  # the root outranks all, whatever it scores
    if (scores[1:] > scores[tree.parents[1:]]).any():
        for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
            scores[node] = min(scores[node], scores[parent])
    return scores


def drop(tree: DraftTree, kept: npt.NDArray[np.bool_]) -> DraftTree:
    """The nodes in `kept`, which was chosen by their scores."""
    rest = tree.keep(kept)
    if tree.draws == "deterministic":
        return rest
    return DraftTree(rest.tokens, rest.parents, rest.scores, "pruned")


def _best(scores: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.bool_]:
    """A mask of the `count` best; ties go to the smaller index."""
    if count >= len(scores):
        return np.ones(len(scores), dtype=np.bool_)
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    mask: npt.NDArray[np.bool_] = scores > least
    tied = np.flatnonzero(scores == least)
    mask[tied[: count - np.count_nonzero(mask)]] = True
    return mask
