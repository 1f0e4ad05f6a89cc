# SPDX-License-Identifier: Apache-2.0
"""Attention problems over poisoned pools: every slot that no row may see holds NaN."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import treeattn
from torch import Tensor

from support.paged import random_block_table
from support.trees import pack_parents, random_parents


@dataclass(frozen=True)
class AttentionProblem:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    plan: treeattn.TreePlan


@dataclass(frozen=True)
class AttentionCase:
    """`trees` are node counts (branching 0 = chain, 1 = bushy) or explicit parents."""

    name: str
    trees: tuple[int | tuple[int, ...], ...] = (7,)
    context_lens: tuple[int, ...] = (33,)
    branching: float = 0.5
    block_size: int = 16
    num_qo_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    seed: int = 0
    batch_invariant: bool = False  # on CUDA; elsewhere always
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def parents(self) -> list[list[int]]:
        rng = random.Random(self.seed)
        return [
            random_parents(rng, tree, self.branching) if isinstance(tree, int) else list(tree)
            for tree in self.trees
        ]

    def make(self, device: str, *, poison: float = float("nan")) -> AttentionProblem:
        rng = random.Random(self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        trees = self.parents()
        parents, node_indptr = pack_parents(trees)
        table = random_block_table(
            rng,
            [length + len(tree) for length, tree in zip(self.context_lens, trees, strict=True)],
            self.block_size,
        )
        plan = treeattn.plan_tree(
            parents.to(device),
            node_indptr.to(device),
            torch.tensor(self.context_lens, dtype=torch.int32, device=device),
            table.to(device),
            block_size=self.block_size,
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            batch_invariant=self.batch_invariant,
        )
        num_blocks = int(table[table < 2**30].max() if table.numel() else 0) + 2
        shape = (num_blocks, self.block_size, self.num_kv_heads, self.head_dim)
        k_cache = torch.full(shape, poison, dtype=self.dtype)
        v_cache = k_cache.clone()
        slots = torch.cat([live_slots(plan, request) for request in range(len(trees))])
        for cache in (k_cache, v_cache):
            rows = torch.randn(len(slots), *shape[2:], generator=generator)
            cache[slots // self.block_size, slots % self.block_size] = rows.to(self.dtype)
        q = torch.randn(len(parents), self.num_qo_heads, self.head_dim, generator=generator)
        return AttentionProblem(
            q.to(self.dtype).to(device), k_cache.to(device), v_cache.to(device), plan
        )

    def with_(self, **changes: Any) -> AttentionCase:
        return replace(self, **changes)


def live_slots(plan: treeattn.TreePlan, request: int) -> Tensor:
    """Physical slots of a request's context and nodes, in logical order."""
    size = plan.block_size
    context = torch.arange(int(plan.context_lens[request]))
    blocks = plan.block_table[request].cpu().long()
    nodes = plan.slot_mapping.cpu()[
        int(plan.node_indptr[request]) : int(plan.node_indptr[request + 1])
    ]
    return torch.cat([blocks[context // size] * size + context % size, nodes])


def assert_rows_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Worst element and relative norm, with the coordinates of the worst element."""
    error = (actual.cpu().double() - expected).abs()
    assert not error.isnan().any(), f"NaN at {error.isnan().nonzero()[0].tolist()}"
    worst = int(error.argmax()) if error.numel() else 0
    if error.numel():
        where = [int(i) for i in torch.unravel_index(torch.tensor(worst), error.shape)]
        assert error.max() <= tolerance, f"{error.max():.3g} > {tolerance:.3g} at {where}"
        assert error.norm() <= tolerance * expected.norm(), "relative norm"


def rows_bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
