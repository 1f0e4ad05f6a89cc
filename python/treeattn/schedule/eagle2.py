# SPDX-License-Identifier: Apache-2.0
"""EAGLE-2's dynamic trees (Li et al., 2406.16858): expand the likeliest, then rerank everything."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from treeattn.schedule.laws import LogProbs, checked, likeliest
from treeattn.schedule.levels import Frontier
from treeattn.tree import DraftTree


def eagle2(
    log_probs: LogProbs, root_token: int, *, top_k: int, depth: int, num_nodes: int
) -> DraftTree:
    """The `num_nodes` likeliest nodes of a tree that is expanded `top_k` wide and `depth` deep.

    Each level gives its `top_k` best nodes their `top_k` best children; the best of those are the
    next level. Of all candidates there ever were, the best remain (EAGLE-2, 2406.16858); ties go to
    the one that was found first, so a node never remains without its parent.

    log_probs(tree, nodes) -> [len(nodes), V], once per level: the laws after `nodes` of `tree`,
    which only grows from call to call. Its nodes are those that were asked for, their ancestors
    among them. Tokens without probability (-inf) are never drafted; above 0 counts as 0.
    num_nodes counts the root. The tree has fewer when there are fewer candidates.

    Returns the tree in depth-first order, likeliest child first, with scores.
    Raises ValueError for a limit below 1, or for laws that are NaN or not one row per node.
    """
    expansion = Expansion(root_token, top_k=top_k, depth=depth, num_nodes=num_nodes)
    while expansion.frontier:
        expansion.expand(log_probs(expansion.tree(), expansion.frontier))
    return expansion.best()


class Expansion:
    """A tree that `eagle2` would grow, a level per call of `expand`; several can grow abreast.

    frontier: the nodes of `tree()` whose laws `expand` wants next; empty when nothing more can
        change the result, or when `narrow` dropped what was left.
    """

    def __init__(self, root_token: int, *, top_k: int, depth: int, num_nodes: int) -> None:
        for name, value in (("top_k", top_k), ("depth", depth), ("num_nodes", num_nodes)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self._top_k = top_k
        self._levels_left = depth
        self._num_nodes = num_nodes
        # The pool: every candidate ever, in the order in which they were found, the root first.
        self._tokens = [root_token]
        self._parents = [-1]
        self._scores = [0.0]
        # Pool indices of the nodes of `tree()`: those that were expanded, then the frontier.
        self._expanded: list[int] = []
        self._next = [0] if num_nodes > 1 else []

    @property
    def frontier(self) -> list[int]:
        return list(range(len(self._expanded), len(self._expanded) + len(self._next)))

    def tree(self) -> DraftTree:
        """The nodes expanded so far and the frontier; a later tree appends to the former."""
        return self._part(self._expanded + self._next)

    def candidates(self) -> Frontier:
        """The whole pool, and the frontier in it."""
        return Frontier(DraftTree(self._tokens, self._parents, self._scores), self._next)

    def narrow(self, kept: Sequence[bool]) -> None:
        """Ask below those frontier nodes only whose `kept` is set; the others stay candidates."""
        self._next = [index for index, keep in zip(self._next, kept, strict=True) if keep]

    def expand(self, log_probs: Tensor, token_ids: Sequence[int] | None = None) -> None:
        """Add the children of the frontier; log_probs: [len(frontier), V], a row per node.

        token_ids: [V], the token that each column stands for; by default its index.
        """
        laws = checked(log_probs, len(self._next))
        first = len(self._tokens)
        children = likeliest(laws, [self._top_k] * len(laws))
        for parent, law, columns in zip(self._next, laws, children, strict=True):
            for column, log_prob in zip(columns, law[columns].tolist(), strict=True):
                self._tokens.append(column if token_ids is None else token_ids[column])
                self._parents.append(parent)
                self._scores.append(self._scores[parent] + log_prob)
        self._levels_left -= 1
        self._advance(range(first, len(self._tokens)))

    def best(self) -> DraftTree:
        """The best of the pool, at most `num_nodes`, in depth-first order."""
        kept = sorted(self._ranked(range(len(self._tokens)), self._num_nodes))
        return self._part(kept, scores=[self._scores[index] for index in kept]).dfs()

    def _advance(self, candidates: Sequence[int]) -> None:
        """Make the best of the last level's candidates the frontier.

        What the pool outranks already is left out: it will not be in the result, nor will anything
        below it, which scores no better and is found later.
        """
        self._expanded += self._next
        self._next = []
        if self._levels_left > 0:
            hopeful = set(self._ranked(range(len(self._tokens)), self._num_nodes))
            ranked = self._ranked(candidates, self._top_k)
            self._next = [index for index in ranked if index in hopeful]

    def _part(self, indices: Sequence[int], scores: Sequence[float] | None = None) -> DraftTree:
        """The tree of the candidates at `indices`, parents first."""
        node_of = {index: node for node, index in enumerate(indices)}
        return DraftTree(
            [self._tokens[index] for index in indices],
            [node_of.get(self._parents[index], -1) for index in indices],
            scores,
        )

    def _ranked(self, indices: Sequence[int], count: int) -> list[int]:
        """The `count` best of ascending pool `indices`; ties go to the smaller one."""
        return sorted(indices, key=lambda index: -self._scores[index])[:count]
