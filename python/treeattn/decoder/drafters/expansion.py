# SPDX-License-Identifier: Apache-2.0
"""Trees by top-k expansion, a level of all requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from treeattn.tree import DraftTree

WIDTH = 4  # nodes a level adds, and children each node is given to choose them from

# The drafter's next-token law at every node of every tree: [len(tree), V] log probs per tree.
LogProbs = Callable[[list[DraftTree]], list[Tensor]]


@dataclass
class _Growth:
    """A tree on its way."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])
    frontier: list[int] = field(default_factory=lambda: [0])

    def tree(self) -> DraftTree:
        return DraftTree(self.tokens, self.parents, scores=self.scores)

    def expand(self, log_probs: Tensor, width: int, num_nodes: int) -> None:
        """Add the `width` likeliest children of the frontier, by the probability of their path.

        log_probs: [nodes, V]. Ties go to the earlier node, then to the likelier child.
        """
        children = log_probs[self.frontier].topk(min(width, log_probs.shape[1]))
        candidates = [
            (self.scores[node] + score, node, token)
            for node, scores, tokens in zip(
                self.frontier, children.values.tolist(), children.indices.tolist(), strict=True
            )
            for score, token in zip(scores, tokens, strict=True)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        first = len(self.tokens)
        for score, node, token in candidates[: min(width, num_nodes - first)]:
            self.tokens.append(token)
            self.parents.append(node)
            self.scores.append(score)
        self.frontier = list(range(first, len(self.tokens)))


def grow_trees(
    roots: Sequence[int], num_nodes: int, shape: str, log_probs: LogProbs
) -> list[DraftTree]:
    """Grow one tree (or chain) of `num_nodes` nodes below each root token.

    One call of `log_probs` per level.
    """
    growths = [_Growth([root]) for root in roots]
    width = 1 if shape == "chain" else WIDTH
    while len(growths[0].tokens) < num_nodes:
        laws = log_probs([growth.tree() for growth in growths])
        for growth, law in zip(growths, laws, strict=True):
            growth.expand(law, width, num_nodes)
    return [growth.tree() for growth in growths]
