# SPDX-License-Identifier: Apache-2.0
"""An acceptance problem whose accepted path is known, and its law in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import treeattn
from torch import Tensor

from bench import trees
from bench.models import DTYPES

_CONTEXT = 100


@dataclass(frozen=True)
class Sampling:
    """rule "greedy", or "target" at temperature 1 with filters (0 and 1 switch them off)."""

    rule: str = "greedy"
    top_k: int = 0
    top_p: float = 1.0

    @property
    def label(self) -> str:
        filters = (f" top-k {self.top_k}" if self.top_k else "") + (
            f" top-p {self.top_p}" if self.top_p < 1 else ""
        )
        return self.rule + filters


@dataclass(frozen=True)
class AcceptCase:
    vocab: int
    tree: str
    accepted: int  # draft nodes on the accepted path
    dtype: str
    sampling: Sampling = Sampling()
    batch: int = 1

    @property
    def label(self) -> str:
        nodes = len(trees.make(self.tree))
        return (
            f"{self.sampling.label}, [{self.batch * nodes}, {self.vocab}] {self.dtype}, B "
            f"{self.batch}, {self.tree}, {self.accepted + 1} rows visited"
        )


@dataclass
class AcceptProblem:
    """N = batch * nodes rows; every request has the same tree and the same path."""

    case: AcceptCase
    parents: list[int]
    tokens: Tensor  # [N] int64
    logits: Tensor  # [N, vocab]
    uniforms: Tensor  # [N, 2] fp32, column 1 draws
    plan: treeattn.TreePlan
    emitted: list[int]  # per request: the tokens of the path, then the next token

    @property
    def children(self) -> list[dict[int, int]]:
        """For each node of one request: token -> child."""
        maps: list[dict[int, int]] = [{} for _ in self.parents]
        for node, parent in reversed(list(enumerate(self.parents))):  # the first of equals stays
            if parent >= 0:
                maps[parent][int(self.tokens[node])] = node
        return maps


def build(case: AcceptCase) -> AcceptProblem:
    """Random logits in which the path's tokens are the likeliest; the draws fall on them."""
    generator = torch.Generator().manual_seed(case.vocab + case.accepted)
    parents = trees.make(case.tree)
    nodes = len(parents)
    depths = trees.depths(parents)
    path = trees.path_to(parents, depths.index(max(depths)))[: case.accepted + 1]
    if len(path) != case.accepted + 1:
        raise ValueError(f"accepted must be at most the depth {max(depths)}, got {case.accepted}")
    tokens = torch.randperm(case.vocab - 1, generator=generator)[:nodes]
    last = case.vocab - 1  # no node's token: the bonus
    emitted = [*(int(tokens[node]) for node in path[1:]), last]
    logits = torch.randn(nodes, case.vocab, generator=generator) * 2
    for node, token in zip(path, emitted, strict=True):
        logits[node, token] = logits[node].max() + 1
    logits = logits.to(DTYPES[case.dtype])
    uniforms = torch.rand(nodes, 2, generator=generator)
    if case.sampling.rule == "target":
        for node, token in zip(path, emitted, strict=True):
            uniforms[node, 1] = _middle(logits[node], token, case.sampling)
    plan = treeattn.plan_tree(
        torch.tensor(parents * case.batch, dtype=torch.int32),
        torch.arange(0, case.batch * nodes + 1, nodes, dtype=torch.int32),
        torch.full((case.batch,), _CONTEXT, dtype=torch.int32),
        torch.arange(case.batch * (_CONTEXT + nodes), dtype=torch.int32).view(case.batch, -1),
        block_size=1,
        num_qo_heads=1,
        num_kv_heads=1,
        max_depth=max(depths),
    )
    return AcceptProblem(
        case=case,
        parents=parents,
        tokens=tokens.repeat(case.batch),
        logits=logits.repeat(case.batch, 1),
        uniforms=uniforms.repeat(case.batch, 1),
        plan=plan,
        emitted=emitted,
    )


def law(row: Tensor, sampling: Sampling) -> Tensor:
    """The filtered target of one row [vocab], in fp64."""
    probs = row.double().softmax(0)
    ranked = probs.argsort(descending=True, stable=True)
    if 0 < sampling.top_k < len(probs):
        probs[ranked[sampling.top_k :]] = 0
        probs /= probs.sum()
    if sampling.top_p < 1:
        kept = int((probs[ranked].cumsum(0) < sampling.top_p).sum()) + 1
        probs[ranked[kept:]] = 0
    return probs / probs.sum()


def _middle(row: Tensor, token: int, sampling: Sampling) -> float:
    """A uniform number in the middle of the token's share, so that rounding decides nothing."""
    probs = law(row, sampling)
    return float(probs[:token].sum() + probs[token] / 2)
