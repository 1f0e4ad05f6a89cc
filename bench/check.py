# SPDX-License-Identifier: Apache-2.0
"""Attention in fp64, on a sample of rows, as the judge of everything that is timed."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from bench.problem import Problem

SAMPLED_NODES = 12
# Largest absolute error allowed. Values are averages of standard normal numbers. bf16: results
# are rounded to 8 bits, and peers round scores and probabilities too.
TOLERANCE = {"fp32": 2e-5, "bf16": 4e-2}


class WrongResultError(RuntimeError):
    """A candidate's result differs from fp64 by more than its tolerance."""


class Judge:
    """The fp64 result of some rows of a problem, the same rows for every candidate."""

    def __init__(self, problem: Problem, pool: int = 0) -> None:
        count = min(SAMPLED_NODES, problem.num_nodes)
        rng = random.Random(problem.num_keys)
        chosen = {0, problem.num_nodes - 1, *rng.sample(range(problem.num_nodes), count)}
        self.nodes = sorted(chosen)
        self.expected = torch.stack([_row(problem, pool, node) for node in self.nodes])
        self.tolerance = TOLERANCE[problem.case.dtype]

    def error(self, out: Tensor) -> float:
        """Largest absolute error of out [N, num_qo_heads, head_dim] over the sampled rows."""
        difference = (out[self.nodes].double() - self.expected).abs()
        return float(difference.nan_to_num(nan=float("inf")).max())

    def check(self, name: str, out: Tensor) -> float:
        """The error, or WrongResultError when it is beyond the tolerance."""
        error = self.error(out)
        if error > self.tolerance:
            raise WrongResultError(
                f"{name}: largest error against fp64 must be at most {self.tolerance:g}, "
                f"got {error:g}"
            )
        return error


def _row(problem: Problem, pool: int, node: int) -> Tensor:
    """[num_qo_heads, head_dim] fp64: softmax over context and ancestors, straight from the pool."""
    case, model = problem.case, problem.case.model
    logical = list(range(case.ctx))
    ancestor = node
    while ancestor >= 0:
        logical.append(case.ctx + ancestor)
        ancestor = problem.parents[ancestor]
    slots = torch.tensor(logical)
    blocks = problem.plan.block_table[0].long()[slots // case.block_size]
    k, v = (plane[blocks, slots % case.block_size].double() for plane in problem.pools[pool])
    q = problem.q[node].double().view(model.num_kv_heads, model.group, model.head_dim)
    scores = torch.einsum("hgd,thd->hgt", q, k) * model.head_dim**-0.5
    out = torch.einsum("hgt,thd->hgd", scores.softmax(-1), v)
    return out.reshape(model.num_qo_heads, model.head_dim)
