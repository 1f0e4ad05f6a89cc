# SPDX-License-Identifier: Apache-2.0
"""Drafting level by level: below which nodes the next level pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treeattn.cost import FloatArray
from treeattn.tree import DraftTree


@dataclass(frozen=True)
class Frontier:
    """A draft between two levels.

    tree: every candidate found so far, with scores, siblings likeliest first. nodes: those whose
        children would be asked for next; at least one, all of one depth.
    """

    tree: DraftTree
    nodes: Sequence[int]

    @property
    def level(self) -> int:
        """The one that comes next, counted from 1."""
        return int(self.tree.depths[self.nodes[0]]) + 1

    @property
    def on_paths(self) -> npt.NDArray[np.bool_]:
        """[N]: `nodes` and all above them."""
        mask = np.zeros(len(self.tree), dtype=np.bool_)
        nodes = np.asarray(self.nodes)
        for _ in range(self.level):
            mask[nodes] = True
            nodes = self.tree.parents[nodes]
        return mask

    def paths(self) -> DraftTree:
        """The tree of `nodes` and all above them, in the same order: what has to be run."""
        return self.tree.keep(self.on_paths)


def everything(requests: Sequence[object], frontiers: Sequence[Frontier]) -> list[list[bool]]:
    """For a draft that nothing stops: ask below every node."""
    return [[True] * len(frontier.nodes) for frontier in frontiers]


def most_saving(
    saved_ms: FloatArray, draft_ms: FloatArray, verify_ms: FloatArray
) -> npt.NDArray[np.bool_]:
    """Which of W nodes to ask for their children, so that most time is saved: none, some or all.

    Those that save most come first, and there are as many as pays for all of them together.

    saved_ms: [W], what the tokens below each node save. draft_ms: [W], what a level takes that asks
        1, 2, ... nodes. verify_ms: [R + 1], what the step takes with 0 to R rows more than the
        nodes' own paths. Each node that is asked needs one at least, until there are no more: then
        children take rows from others, for nothing.
    Infinite costs are those that were not measured, and are not chosen. Ties go to fewer nodes.
    """
    order = np.argsort(-saved_ms, kind="stable")
    costs = draft_ms + _rows_ms(verify_ms, len(saved_ms))
    known = np.isfinite(costs)
    nets = np.full(len(saved_ms), -np.inf)
    nets[known] = np.cumsum(saved_ms[order])[known] - costs[known]
    count = int(np.concatenate(([0.0], nets)).argmax())
    asked = np.zeros(len(saved_ms), dtype=np.bool_)
    asked[order[:count]] = True
    return asked


def _rows_ms(verify_ms: FloatArray, width: int) -> FloatArray:
    """[width]: what 1, 2, ... more rows take, at the best price per row for so many or more.

    The rows that a step of the staircase opens share its cost: one level fills a part of them, and
    which other levels will is not known yet.
    """
    if not np.isfinite(verify_ms[0]):
        return np.full(width, np.inf)
    more = np.arange(1, len(verify_ms))
    prices = np.maximum(verify_ms[1:] - verify_ms[0], 0.0) / more
    best = np.minimum.accumulate(prices[::-1])[::-1]
    costs = np.concatenate(([0.0], best * more))
    return costs[np.minimum(np.arange(1, width + 1), len(more))]
