# SPDX-License-Identifier: Apache-2.0
"""Requests by what they hold, apart from where it lies: one problem, many layouts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import torch
import treeattn
from torch import Tensor

from support.attention import AttentionProblem, live_slots
from support.paged import random_block_table
from support.trees import pack_parents


@dataclass(frozen=True)
class Request:
    """A tree of n nodes below a context; row `context_len + i` of k and v belongs to node i."""

    parents: list[int]
    q: Tensor  # [n, num_qo_heads, head_dim]
    k: Tensor  # [context_len + n, num_kv_heads, head_dim]
    v: Tensor

    @property
    def context_len(self) -> int:
        return len(self.k) - len(self.parents)


def random_request(
    seed: int,
    parents: list[int],
    context_len: int,
    *,
    num_qo_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
) -> Request:
    generator = torch.Generator().manual_seed(seed)
    total = context_len + len(parents)
    q = torch.randn(len(parents), num_qo_heads, head_dim, generator=generator)
    k, v = torch.randn(2, total, num_kv_heads, head_dim, generator=generator)
    return Request(parents, q.to(dtype), k.to(dtype), v.to(dtype))


def lay_out(
    requests: list[Request],
    block_size: int,
    *,
    seed: int = 0,
    poison: float = float("nan"),
    capacity: int | None = None,
    max_depth: int | None = None,
    batch_invariant: bool = False,
) -> AttentionProblem:
    """Shuffled blocks; every slot that no request owns holds `poison`, every spare table entry an
    impossible block. Rows from the last request to `capacity` belong to nobody."""
    parents, node_indptr = pack_parents([r.parents for r in requests], capacity=capacity)
    slots = [len(r.k) for r in requests]
    num_blocks = sum(-(-n // block_size) for n in slots) + 3
    plan = treeattn.plan_tree(
        parents,
        node_indptr,
        torch.tensor([r.context_len for r in requests]),
        random_block_table(random.Random(seed), slots, block_size, num_blocks=num_blocks),
        block_size=block_size,
        num_qo_heads=requests[0].q.shape[1],
        num_kv_heads=requests[0].k.shape[1],
        max_depth=max_depth,
        batch_invariant=batch_invariant,
    )
    spare = len(parents) - sum(len(r.q) for r in requests)
    q = torch.cat(
        [r.q for r in requests] + [requests[0].q.new_ones(spare, *requests[0].q.shape[1:])]
    )
    shape = (num_blocks, block_size, *requests[0].k.shape[1:])
    pools = []
    for rows in ([r.k for r in requests], [r.v for r in requests]):
        pool = torch.full(shape, poison).to(rows[0].dtype)
        for index, row in enumerate(rows):
            at = live_slots(plan, index)
            pool[at // block_size, at % block_size] = row
        pools.append(pool)
    return AttentionProblem(q, pools[0], pools[1], plan)


def attend(x: AttentionProblem, *, window: int | None = None) -> tuple[Tensor, Tensor]:
    """out and lse; out starts as NaN, so a row that is not written shows."""
    out = torch.full_like(x.q, torch.nan)
    result = treeattn.tree_attention(
        x.q, x.k_cache, x.v_cache, x.plan, window=window, out=out, return_lse=True
    )
    assert isinstance(result, tuple)
    return result


def per_request(x: AttentionProblem, rows: Tensor) -> list[Tensor]:
    bounds = x.plan.node_indptr.tolist()
    return [rows[a:b] for a, b in pairwise(bounds)]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )
