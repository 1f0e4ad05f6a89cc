# SPDX-License-Identifier: Apache-2.0
"""Trees whose tokens are drawn from the drafter's law, for the rules that correct for that law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from treeattn.decoder.drafters.levels import every_level
from treeattn.decoder.request import Request
from treeattn.schedule import sequoia_tree
from treeattn.schedule.laws import sampled
from treeattn.tree import DraftTree

# How likely the first, second, ... sibling is assumed to be the accepted one: it decides the shape
# of a drawn tree, which must not depend on the tokens drawn.
ACCEPTANCE = (0.6, 0.2, 0.1, 0.05)
MAX_LEVELS = 6
NO_TOKEN = -1  # of a node for which the law of its parent had no token left


@dataclass(frozen=True)
class DraftLaws:
    """What the children of drawn trees were drawn from, after the drafter's temperature.

    probs: per request [rows, Vq], of which the tree's `draft_rows` name one for each node (without
    them: its parent's number), or None for a request without a draft. ids: [Vq] int64, the target's
    id of each column; None when it is the column.
    """

    probs: list[Tensor | None]
    ids: Tensor | None = None


@lru_cache(maxsize=64)
def drawn_shape(num_nodes: int, shape: str, levels: int) -> tuple[int, ...]:
    """Number of children of each node, level by level: the best tree under ACCEPTANCE.

    shape: "chain" or "tree". levels: the most below the root.
    """
    if shape == "chain":
        length = min(num_nodes, levels + 1)
        return (*(1 for _ in range(length - 1)), 0)
    parents, _ = sequoia_tree(ACCEPTANCE, num_nodes, levels)
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    counts: list[int] = []
    level = [0]
    while level:
        counts += (len(children[node]) for node in level)
        level = [child for node in level for child in children[node]]
    return tuple(counts)


class DrawnTree:
    """A tree on its way, a level per call of `expand`; several can grow abreast.

    frontier: the nodes of `tree()` whose laws `expand` wants next; empty when the tree is done.
    draws: "iid", or "swor" (without replacement, in order). Where a law has fewer tokens than its
    node has children under "swor", the last of them and all below get NO_TOKEN: so the shape, by
    which a tree is cut, never depends on what was drawn. `without_missing` drops them afterwards.
    """

    def __init__(
        self,
        root_token: int,
        child_counts: Sequence[int],
        *,
        draws: str,
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        self._draws = draws
        self._temperature = temperature
        self._generator = generator
        self._planned = list(child_counts)  # of the nodes of the shape, level by level
        self._place = [0]  # of each node in the shape
        self._tokens = [root_token]
        self._parents = [-1]
        self._laws: dict[int, Tensor] = {}
        self._grown = [0]  # the node that each node of `tree()` is
        self._node_of = {0: 0}  # and back
        self.frontier = [0] if child_counts[0] > 0 else []

    def tree(self) -> DraftTree:
        """The nodes that have children, and the frontier; a later tree appends to it."""
        parents = [self._node_of.get(self._parents[node], -1) for node in self._grown]
        return DraftTree([self._tokens[node] for node in self._grown], parents)

    def best(self) -> DraftTree:
        """All nodes, in depth-first order; `draft_rows` names the rows of `laws()`."""
        row_of = {node: row for row, node in enumerate(self._laws)}
        rows = [row_of.get(parent, 0) for parent in self._parents]  # any, where none was drawn
        return DraftTree(self._tokens, self._parents, draws=self._draws, draft_rows=rows).dfs()

    def expand(self, log_probs: Tensor, token_ids: Sequence[int] | None = None) -> None:
        """Draw the children of the frontier; log_probs: [len(frontier), Vq], a row per node.

        token_ids: [Vq], the token that each column stands for; by default its index.
        """
        log_probs = log_probs.float().cpu()
        shifted = log_probs - log_probs.amax(-1, keepdim=True)
        # Bounds that keep 0 / temperature and -inf / temperature defined.
        laws = torch.log_softmax(shifted / min(max(self._temperature, 1e-37), 1e37), -1)
        parents = [self._grown[node] for node in self.frontier]
        self.frontier = []
        for parent, law in zip(parents, laws, strict=True):
            self._laws[parent] = law.exp()
            law = law.masked_fill(self._laws[parent] == 0, -float("inf"))
            place = self._place[parent]
            first_child = 1 + sum(self._planned[:place])
            columns = self._draw(law, self._planned[place])
            for rank, column in enumerate(columns):
                token = column if token_ids is None else token_ids[column]
                node = self._add(parent, first_child + rank, token)
                if self._planned[first_child + rank] > 0:
                    self._node_of[node] = len(self._grown)
                    self.frontier.append(len(self._grown))
                    self._grown.append(node)
            for rank in range(len(columns), self._planned[place]):
                self._add_missing(parent, first_child + rank)

    def laws(self) -> Tensor | None:
        """[nodes with children, Vq]; None for a tree that drew nothing."""
        return torch.stack([*self._laws.values()]) if self._laws else None

    def _add(self, parent: int, place: int, token: int) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._place.append(place)
        return len(self._tokens) - 1

    def _add_missing(self, parent: int, place: int) -> None:
        node = self._add(parent, place, NO_TOKEN)
        first_child = 1 + sum(self._planned[:place])
        for rank in range(self._planned[place]):
            self._add_missing(node, first_child + rank)

    def _draw(self, law: Tensor, count: int) -> list[int]:
        """Columns, in the order in which they were drawn."""
        if self._draws == "iid":
            return sampled(law[None], [count], self._generator)[0]
        # The order of log q + Gumbel noise is that of drawing one after the other (Gumbel top-k).
        noise = torch.empty_like(law).exponential_(generator=self._generator).log()
        drawn = (law - noise).topk(min(count, len(law)))
        return [
            int(column)
            for key, column in zip(drawn.values, drawn.indices, strict=True)
            if key > -float("inf")
        ]


def without_missing(tree: DraftTree) -> DraftTree:
    """A drawn tree as it may be verified: its nodes that have a token."""
    found = tree.tokens != NO_TOKEN
    return tree if found.all() else tree.keep(found)


def plant(
    request: Request,
    num_nodes: int,
    shape: str,
    *,
    draws: str,
    temperature: float,
    max_levels: int | None = None,
) -> DrawnTree:
    """A drawn tree that has its root only; its numbers are its own for every request and step.

    max_levels: below the root; by default MAX_LEVELS for a tree, any number for a chain.
    """
    if max_levels is None:
        max_levels = MAX_LEVELS if shape == "tree" else num_nodes
    levels = max(0, min(max_levels, request.room - 1))  # the last token is the target's
    mixed = (request.seed * 0x9E3779B97F4A7C15 + len(request.tokens) * 0xD1B54A32D192ED03) % 2**63
    return DrawnTree(
        request.tokens[-1],
        drawn_shape(num_nodes, shape, levels),
        draws=draws,
        temperature=temperature,
        generator=torch.Generator().manual_seed(mixed),
    )


# The drafter's law at every node of the requests' trees: [len(tree), Vq] log probs per tree.
LogProbs = Callable[[list[Request], list[DraftTree]], list[Tensor]]


def grow(
    requests: Sequence[Request], drawn: Mapping[Request, DrawnTree], log_probs: LogProbs
) -> tuple[list[DraftTree | None], DraftLaws]:
    """Grow all trees to their end, one call of `log_probs` per level.

    Returns what `DrawsTokens.draw` does; a request that is not in `drawn` goes without a draft.
    """
    for growing in every_level(drawn):
        laws = log_probs([*growing], [tree.tree() for tree in growing.values()])
        for tree, law in zip(growing.values(), laws, strict=True):
            tree.expand(law[tree.frontier])
    found = [drawn.get(request) for request in requests]
    return (
        [None if tree is None else tree.best() for tree in found],
        DraftLaws([None if tree is None else tree.laws() for tree in found]),
    )
