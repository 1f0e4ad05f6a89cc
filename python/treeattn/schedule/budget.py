# SPDX-License-Identifier: Apache-2.0
"""One budget of nodes for a whole batch: each goes where it is likeliest to be accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from treeattn.cost import FloatArray, StepCosts
from treeattn.schedule.prune import drop, path_scores
from treeattn.tree import DraftTree, IntLike

Indices: TypeAlias = npt.NDArray[np.integer[Any]]


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
    if not any(tree is not None and len(tree) > 0 for tree in trees):
        return BatchPlan(tuple(trees), depth=0, rows=0, tokens=0.0, ms=0.0)
    batch = _Batch(trees, max_nodes, max_depths)
    most_rows = batch.num_requests + len(batch.ranked)
    if max_rows is not None:
        most_rows = max(batch.num_requests, min(most_rows, max_rows))
    rows = np.arange(batch.num_requests, most_rows + 1)
    verify_ms = costs.after_draft(rows, context) + spent_ms

    best: Indices = np.empty(0, dtype=np.int64)
    best_tokens, best_ms, best_rate = 0.0, 0.0, -1.0
    for nodes in batch.orders(by_depth=costs.draft is not None):
        nodes = nodes[: most_rows - batch.num_requests]
        tokens = batch.num_requests + np.cumsum(np.concatenate(([0.0], batch.probs[nodes])))
        ms = verify_ms[: len(tokens)] + _draft_ms(costs, batch, nodes)
        rates = tokens / ms
        if max_ms is not None:
            rates[1:][ms[1:] > max_ms] = -1.0
        count = int(rates.argmax())
        if rates[count] > best_rate:
            best, best_rate = nodes[:count], rates[count]
            best_tokens, best_ms = float(tokens[count]), float(ms[count])
    return BatchPlan(
        trees=tuple(batch.kept(best)),
        depth=int(batch.depths[best].max(initial=0)),
        rows=batch.num_requests + len(best),
        tokens=best_tokens,
        ms=best_ms,
    )


class _Batch:
    """The nodes of all requests, numbered through.

    ranked: those below a root that fit their request, the likeliest first, parents first.
    """

    def __init__(
        self,
        trees: Sequence[DraftTree | None],
        max_nodes: IntLike | None,
        max_depths: IntLike | None,
    ) -> None:
        for name, limits in (("max_nodes", max_nodes), ("max_depths", max_depths)):
            if limits is not None and len(limits) != len(trees):
                raise ValueError(f"{name} must have {len(trees)} entries, got {len(limits)}")
        self._trees = trees
        self._offsets = np.cumsum([0, *(0 if tree is None else len(tree) for tree in trees)])
        active = [tree for tree in trees if tree is not None and len(tree) > 0]
        sizes = np.diff(self._offsets)
        starts = self._offsets[:-1][sizes > 0]
        self.num_requests = len(active)
        self.depths: Indices = np.concatenate([tree.depths for tree in active])
        self.parents: Indices = np.concatenate(
            [tree.parents + start for tree, start in zip(active, starts, strict=True)]
        )
        scores = np.concatenate([path_scores(tree) for tree in active])
        self.probs: FloatArray = np.exp(np.minimum(scores, 0.0))
        order = np.argsort(-scores, kind="stable")
        order = order[self.depths[order] > 0]
        if max_depths is not None:
            order = order[self.depths[order] <= np.repeat(max_depths, sizes)[order]]
        if max_nodes is not None:
            order = order[self._rank_in_request(order) + 2 <= np.repeat(max_nodes, sizes)[order]]
        self.ranked: Indices = order

        # The likeliest child of each node, and the chain of those from the root on.
        self._first = np.zeros(len(scores), dtype=np.bool_)
        self._first[order[np.unique(self.parents[order], return_index=True)[1]]] = True
        self._on_chain = self.depths == 0
        for depth in range(1, self.max_depth + 1):
            level = order[self.depths[order] == depth]
            self._on_chain[level] = self._first[level] & self._on_chain[self.parents[level]]

    @property
    def max_depth(self) -> int:
        return int(self.depths[self.ranked].max(initial=0))

    def orders(self, *, by_depth: bool) -> Iterator[Indices]:
        """In which nodes may be taken: none, chains only, all; each for every depth, if asked."""
        yield self.ranked[:0]
        for among in (self.ranked[self._on_chain[self.ranked]], self.ranked):
            for depth in range(1, self.max_depth + 1) if by_depth else ():
                yield among[self.depths[among] <= depth]
            if not by_depth:
                yield among

    def widths(self, nodes: Indices, level: int) -> Indices:
        """Of each prefix of `nodes`: how many nodes have a child in it at depth `level`."""
        asks = self._first[nodes] & (self.depths[nodes] == level)
        widths: Indices = np.cumsum(np.concatenate(([False], asks)))
        return widths

    def kept(self, nodes: Indices) -> Iterator[DraftTree | None]:
        """Each request's tree of its root and its part of `nodes`."""
        mask = self.depths == 0
        mask[nodes] = True
        for tree, start, end in zip(self._trees, self._offsets, self._offsets[1:], strict=False):
            yield tree if tree is None or len(tree) == 0 else drop(tree, mask[start:end])

    def _rank_in_request(self, order: Indices) -> Indices:
        """How many nodes of the same request come before each of `order`."""
        requests = np.searchsorted(self._offsets, order, side="right")
        by_request = np.argsort(requests, kind="stable")
        grouped = requests[by_request]
        starts = np.searchsorted(grouped, grouped)
        ranks = np.empty_like(order)
        ranks[by_request] = np.arange(len(order)) - starts
        return ranks


def _draft_ms(costs: StepCosts, batch: _Batch, nodes: Indices) -> FloatArray:
    """Of each prefix of `nodes`."""
    total = np.zeros(len(nodes) + 1)
    if costs.draft is None or len(nodes) == 0:
        return total
    for level in range(1, int(batch.depths[nodes].max()) + 1):
        widths = batch.widths(nodes, level)
        by_width = costs.draft.along(level, np.arange(widths[-1] + 1))
        by_width[0] = 0.0  # nobody is asked
        total += by_width[widths]
    return total
