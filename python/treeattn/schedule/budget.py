# SPDX-License-Identifier: Apache-2.0
"""One budget of nodes for a whole batch: each goes where it is likeliest to be accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeattn import _host
from treeattn.cost import FloatArray, StepCosts
from treeattn.schedule.prune import drop, path_scores
from treeattn.tree import DraftTree, IntLike

_NOBODY = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """trees: the tree of each request, None where it is inactive; the root alone means off.
    depth: levels to draft. rows: nodes to verify. tokens, ms: expected of the step, all requests'.
    """

    trees: tuple[DraftTree | None, ...]
    depth: int
    rows: int
    tokens: float
    ms: float


def choose_batch(
    trees: Sequence[DraftTree | None],
    costs: StepCosts,
    *,
    context: int,
    max_rows: int | None = None,
    max_nodes: IntLike | None = None,
    max_depths: IntLike | None = None,
    max_ms: float | None = None,
    spent_ms: float = 0.0,
) -> BatchPlan:
    """The parts of `trees` to draft and verify for most tokens per second of the whole batch.

    Nodes are taken by the probability of their path, over all requests, for every depth and every
    number of rows; the rest is left out. Chains alone and plain decoding are among the answers, and
    a request that does not profit gets its root only, in the same batch. Exact where drafting a
    level costs the same at any width; else the best of these orders.

    trees: B; scores are log probabilities that a path is accepted: the drafter's, or the log of
        `cost.path_probs` to decide before drafting. None: an inactive request.
    costs: what is not measured is not chosen. After drafting leave out `draft`: it is spent.
    context: tokens before the root, the longest of the batch.
    max_rows: most nodes of the batch; max_nodes, max_depths: [B], most nodes (the root counts) and
        most depth of each request: free slots, or tokens it may still emit.
    spent_ms: what the step has taken already, whatever is chosen: drafting, mostly.
    max_ms: no more than this in all, except for plain decoding.

    Ties go to off, then to chains, fewer levels, fewer rows. `draws` becomes what `prune` makes it.
    Raises ValueError for a tree without scores, or limits of another length than B.
    """
    scores = [None if tree is None or len(tree) == 0 else path_scores(tree) for tree in trees]
    chosen = choose_nodes(
        trees,
        scores,
        costs,
        context=context,
        max_rows=max_rows,
        max_nodes=max_nodes,
        max_depths=max_depths,
        max_ms=max_ms,
        spent_ms=spent_ms,
    )
    kept = (
        tree if tree is None or len(tree) == 0 else drop(tree, mask)
        for tree, mask in zip(trees, chosen.masks, strict=True)
    )
    return BatchPlan(tuple(kept), chosen.depth, chosen.rows, chosen.tokens, chosen.ms)


@dataclass(frozen=True, eq=False)
class NodePlan:
    """masks: which nodes of each tree are chosen, [N] bool; the rest as in `BatchPlan`."""

    masks: tuple[npt.NDArray[np.bool_], ...]
    depth: int
    rows: int
    tokens: float
    ms: float


def choose_nodes(
    trees: Sequence[DraftTree | None],
    scores: Sequence[FloatArray | None],
    costs: StepCosts,
    *,
    context: int,
    max_rows: int | None = None,
    max_nodes: IntLike | None = None,
    max_depths: IntLike | None = None,
    max_ms: float | None = None,
    spent_ms: float = 0.0,
) -> NodePlan:
    """What `choose_batch` would keep if `scores` were those of the trees, as masks.

    scores: one float64 [N] per tree that has nodes; no node's is above its parent's. The rest as
    there. Raises ValueError naming the tree whose scores are missing, of another shape, or NaN.
    """
    for b, (tree, score) in enumerate(zip(trees, scores, strict=True)):
        if tree is not None and len(tree) > 0 and (score is None or score.shape != (len(tree),)):
            shape = None if score is None else list(score.shape)
            raise ValueError(f"scores[{b}] must be [{len(tree)}] float64, got {shape}")
    for name, limits in (("max_nodes", max_nodes), ("max_depths", max_depths)):
        if limits is not None and len(limits) != len(trees):
            raise ValueError(f"{name} must have {len(trees)} entries, got {len(limits)}")
    active = [
        (tree, score)
        for tree, score in zip(trees, scores, strict=True)
        if tree is not None and score is not None and len(tree) > 0  # else inactive
    ]
    if not active:
        return NodePlan((_NOBODY,) * len(trees), depth=0, rows=0, tokens=0.0, ms=0.0)
    offsets = np.cumsum([0, *(0 if tree is None else len(tree) for tree in trees)], dtype=np.int64)
    most_rows = int(offsets[-1])
    if max_rows is not None:
        most_rows = max(len(active), min(most_rows, max_rows))
    depths = np.concatenate([tree.depths for tree, _ in active])
    kept, depth, rows, tokens, ms = _host.choose_nodes(
        offsets,
        np.concatenate([tree.parents for tree, _ in active]),
        depths,
        np.concatenate([score for _, score in active]),
        costs.after_draft(np.arange(len(active), most_rows + 1), context) + spent_ms,
        _draft_ms(costs, int(depths.max()), len(depths)),
        None if max_nodes is None else np.ascontiguousarray(max_nodes, dtype=np.int64),
        None if max_depths is None else np.ascontiguousarray(max_depths, dtype=np.int64),
        math.inf if max_ms is None else max_ms,
    )
    return NodePlan(tuple(np.split(kept, offsets[1:-1])), depth, rows, tokens, ms)


def _draft_ms(costs: StepCosts, levels: int, most_asked: int) -> FloatArray | None:
    """[levels, most_asked + 1]: what each level takes that asks below so many nodes."""
    if costs.draft is None or levels == 0:
        return None
    table = costs.draft.along(np.arange(1, levels + 1)[:, None], np.arange(most_asked + 1))
    table[:, 0] = 0.0  # nobody is asked
    return table
