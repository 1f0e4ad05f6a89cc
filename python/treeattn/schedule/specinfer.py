# SPDX-License-Identifier: Apache-2.0
"""SpecInfer's trees (Miao et al., 2305.09781): every level multiplies by a configured width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeattn.schedule.laws import LogProbs, checked, likeliest, sampled
from treeattn.tree import DraftTree


def specinfer(
    log_probs: LogProbs,
    root_token: int,
    *,
    expansion: Sequence[int] = (1, 1, 3, 1, 1, 1, 1, 1),
    sample: bool = False,
    seed: int = 0,
) -> DraftTree:
    """A tree in which every node of level i has `expansion[i]` children (SpecInfer, 2305.09781).

    The children are the likeliest tokens, ties to the smaller one (`draws` is "deterministic"), or
    with `sample` independent draws from the law ("iid", for the rules multistep and traversal).
    A token drawn twice below one parent is two siblings; what is drawn below either lies below the
    first, as after `merge_trees`. So no law is asked for twice, and the size stays the same.
    Several drafters: one call each, with different seeds, then `merge_trees`.

    log_probs(tree, nodes) -> [len(nodes), V], once per level: the laws after `nodes` of `tree`,
    which only grows from call to call. Tokens without probability (-inf) are never drafted, so the
    tree has fewer nodes where there are fewer tokens; above 0 counts as 0.
    seed: of the draws; take another one at each step. They do not touch torch's own generator.

    Returns the tree in depth-first order with scores, the likeliest child first; sampled siblings
    keep the order in which they were drawn. Row i of `draft_probs` is the law after node i of this
    tree; who needs to know under which number it was asked for uses `Growth` and its `order`.
    Raises ValueError for a width below 1, or for laws that are NaN or not one row per node.
    """
    growth = Growth(root_token, expansion=expansion, sample=sample, seed=seed)
    while growth.frontier:
        growth.expand(log_probs(growth.tree(), growth.frontier))
    return growth.result()


class Growth:
    """A tree that `specinfer` would grow, a level per call of `expand`; several can grow abreast.

    frontier: the nodes of `tree()` whose laws `expand` wants next; empty at the end.
    """

    def __init__(
        self, root_token: int, *, expansion: Sequence[int], sample: bool = False, seed: int = 0
    ) -> None:
        for level, width in enumerate(expansion):
            if width < 1:
                raise ValueError(f"expansion[{level}] must be >= 1, got {width}")
        self._widths = list(expansion)
        self._generator = torch.Generator().manual_seed(seed) if sample else None
        self._tokens = [root_token]
        self._parents = [-1]
        self._scores = [0.0]
        self._times = {0: 1}  # how often each node of the frontier was drawn
        self.frontier = [0] if self._widths else []

    def tree(self) -> DraftTree:
        """The nodes so far; a later tree appends to it."""
        draws = "deterministic" if self._generator is None else "iid"
        return DraftTree(self._tokens, self._parents, self._scores, draws)

    def expand(self, log_probs: Tensor) -> None:
        """Add the children of the frontier; log_probs: [len(frontier), V], a row per node."""
        laws = checked(log_probs, len(self.frontier))
        width = self._widths.pop(0)
        counts = [width * self._times[node] for node in self.frontier]
        if self._generator is None:
            children = likeliest(laws, counts)
        else:
            children = sampled(laws, counts, self._generator)
        self._times = {}
        for parent, tokens, law in zip(self.frontier, children, laws, strict=True):
            log_probs_of_tokens = law[tokens].tolist()
            drawn = Counter(tokens)
            for token, log_prob in zip(tokens, log_probs_of_tokens, strict=True):
                if token in drawn:  # the first of its equals
                    self._times[len(self._tokens)] = drawn.pop(token)
                self._tokens.append(token)
                self._parents.append(parent)
                self._scores.append(self._scores[parent] + log_prob)
        self.frontier = list(self._times) if self._widths else []

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """[N]: which node of `tree()` each node of `result()` is."""
        ids = DraftTree(range(len(self._tokens)), self._parents, self._scores, self.tree().draws)
        return ids.dfs().tokens

    def result(self) -> DraftTree:
        """The grown tree in depth-first order."""
        tree = self.tree().dfs()
        # Without draft_rows, which would name rows in the order of growth.
        return DraftTree(tree.tokens, tree.parents, tree.scores, tree.draws)
