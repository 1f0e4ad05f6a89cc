# SPDX-License-Identifier: Apache-2.0
"""Trees by top-k expansion, a level of all requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from treeattn.decoder.drafters.levels import Worth, levels_worth
from treeattn.decoder.request import Request
from treeattn.schedule.levels import Frontier, everything
from treeattn.tree import DraftTree

WIDTH = 4  # nodes a level adds, and children each node is given to choose them from

# The drafter's law at every node of the requests' trees: [len(tree), V] log probs per tree.
LogProbs = Callable[[list[Request], list[DraftTree]], list[Tensor]]


class _Growth:
    """A tree on its way."""

    def __init__(self, request: Request, num_nodes: int, width: int) -> None:
        self._num_nodes = num_nodes
        self._width = width
        self._levels_left = request.room - 1  # the token after the last is the target's
        self._tokens = [request.tokens[-1]]
        self._parents = [-1]
        self._scores = [0.0]
        self.frontier: list[int] = []
        self._advance(0)

    def candidates(self) -> Frontier:
        return Frontier(self.tree(), self.frontier)

    def tree(self) -> DraftTree:
        return DraftTree(self._tokens, self._parents, scores=self._scores)

    def narrow(self, kept: Sequence[bool]) -> None:
        """Ask below those frontier nodes only whose `kept` is set; the others become leaves."""
        self.frontier = [node for node, keep in zip(self.frontier, kept, strict=True) if keep]

    def expand(self, log_probs: Tensor) -> None:
        """Add the likeliest children of the frontier, by the probability of their path.

        log_probs: [nodes, V], the frontier last. Ties go to the earlier node, then to the likelier
        child.
        """
        laws = log_probs[-len(self.frontier) :]
        children = laws.topk(min(self._width, laws.shape[1]))
        candidates = [
            (self._scores[node] + score, node, token)
            for node, scores, tokens in zip(
                self.frontier, children.values.tolist(), children.indices.tolist(), strict=True
            )
            for score, token in zip(scores, tokens, strict=True)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        first = len(self._tokens)
        for score, node, token in candidates[: min(self._width, self._num_nodes - first)]:
            self._tokens.append(token)
            self._parents.append(node)
            self._scores.append(score)
        self._levels_left -= 1
        self._advance(first)

    def _advance(self, first: int) -> None:
        """The nodes from `first` on are the frontier, if there may be more."""
        full = len(self._tokens) >= self._num_nodes or self._levels_left <= 0
        self.frontier = [] if full else list(range(first, len(self._tokens)))


def grow_trees(
    requests: Sequence[Request],
    num_nodes: int,
    shape: str,
    log_probs: LogProbs,
    worth: Worth = everything,
) -> list[DraftTree]:
    """Grow a tree (or chain) of up to `num_nodes` nodes below each request's last token.

    One call of `log_probs` per level, for the nodes that `worth` lets ask and those above them.
    """
    width = 1 if shape == "chain" else WIDTH
    growths = {request: _Growth(request, num_nodes, width) for request in requests}
    for asked in levels_worth(growths, worth):
        trees = [growth.candidates().paths() for growth in asked.values()]
        for growth, laws in zip(asked.values(), log_probs([*asked], trees), strict=True):
            growth.expand(laws)
    return [growth.tree() for growth in growths.values()]
