# SPDX-License-Identifier: Apache-2.0
"""Acceptance as written with torch: whole-matrix ops, then a walk over the tree in Python.

Each function returns what every request emits: the tokens of its path and the next token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.acceptance import AcceptProblem

Accept = Callable[[], list[list[int]]]


def make(problem: AcceptProblem) -> dict[str, Accept]:
    """The peers that can do this problem's rule, by name."""
    walk = _Walk(problem)
    if problem.case.sampling.rule == "greedy":
        return {
            "eager_greedy": lambda: walk.over(problem.logits.argmax(-1)),
            "eager_lazy": walk.lazily,
        }
    name = "eager_sort" if problem.case.sampling.top_p < 1 else "eager_softmax"
    return {name: lambda: walk.over(_draw(problem))}


def _draw(problem: AcceptProblem) -> Tensor:
    """[N] one token per row: softmax, top-k, top-p by sorting, inverse CDF."""
    sampling = problem.case.sampling
    probs = problem.logits.float().softmax(-1)
    if sampling.top_k:
        threshold = probs.topk(sampling.top_k, dim=-1).values[:, -1:]
        probs = probs.masked_fill_(probs < threshold, 0)
        probs /= probs.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        ordered, ids = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        ordered.masked_fill_(before >= sampling.top_p, 0)
        probs = torch.zeros_like(probs).scatter_(-1, ids, ordered)
        probs /= probs.sum(-1, keepdim=True)
    draws = problem.uniforms[:, 1:].contiguous()
    return torch.searchsorted(probs.cumsum(-1), draws, right=True)[:, 0]


class _Walk:
    def __init__(self, problem: AcceptProblem) -> None:
        self.logits = problem.logits
        self.nodes = len(problem.parents)
        self.children = problem.children
        self.batch = problem.case.batch

    def over(self, choices: Tensor) -> list[list[int]]:
        """Follow each row's choice [N] from the root."""
        tokens = choices.tolist()
        return [self._follow(b, lambda row: tokens[row]) for b in range(self.batch)]

    def lazily(self) -> list[list[int]]:
        """Argmax of the visited rows only."""
        return [
            self._follow(b, lambda row: int(self.logits[row].argmax())) for b in range(self.batch)
        ]

    def _follow(self, request: int, choose: Callable[[int], int]) -> list[int]:
        emitted: list[int] = []
        node: int | None = 0
        while node is not None:
            token = choose(request * self.nodes + node)
            emitted.append(token)
            node = self.children[node].get(token)
        return emitted
