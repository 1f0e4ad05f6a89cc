# SPDX-License-Identifier: Apache-2.0
"""One attention problem: a draft tree over a paged KV cache with shuffled blocks."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
import treeattn
from torch import Tensor

from bench import trees
from bench.models import DTYPES, Model


@dataclass(frozen=True)
class Case:
    """What is measured; `pools` > 1 rotates over that many caches so that no block stays warm."""

    model: Model
    ctx: int
    tree: str
    dtype: str
    block_size: int = 16
    pools: int = 1

    @property
    def label(self) -> str:
        blocks = f", blocks of {self.block_size}" if self.block_size != 16 else ""
        cold = ", cold" if self.pools > 1 else ""
        return f"{self.model.label}, ctx {self.ctx}, {self.tree}, {self.dtype}{blocks}{cold}"


@dataclass
class Problem:
    """Random data for a case. Request 0 is the only one; T = ctx + nodes."""

    case: Case
    parents: list[int]
    q: Tensor  # [N, num_qo_heads, head_dim]
    pools: list[tuple[Tensor, Tensor]]  # [num_blocks, block_size, num_kv_heads, head_dim] each
    plan: treeattn.TreePlan

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    @property
    def num_keys(self) -> int:
        return self.case.ctx + self.num_nodes

    def visible(self) -> Tensor:
        """[N, N] bool: node (row) sees node (column)."""
        seen = torch.eye(self.num_nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen

    def mask(self) -> Tensor:
        """[N, T] bool over context and nodes."""
        context = torch.ones(self.num_nodes, self.case.ctx, dtype=torch.bool)
        return torch.cat([context, self.visible()], dim=1)


def build(case: Case, parents: list[int] | None = None) -> Problem:
    """Random queries and caches, seeded by the case."""
    parents = trees.make(case.tree) if parents is None else parents
    generator = torch.Generator().manual_seed(zlib.crc32(case.label.encode()))
    model, dtype = case.model, DTYPES[case.dtype]
    num_blocks = -(-(case.ctx + len(parents)) // case.block_size)
    shape = (num_blocks, case.block_size, model.num_kv_heads, model.head_dim)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float32).to(dtype)

    table = torch.randperm(num_blocks, generator=generator, dtype=torch.int32)[None]
    return Problem(
        case=case,
        parents=parents,
        q=random(len(parents), model.num_qo_heads, model.head_dim),
        pools=[(random(*shape), random(*shape)) for _ in range(case.pools)],
        plan=make_plan(case, parents, table),
    )


def make_plan(case: Case, parents: list[int], table: Tensor) -> treeattn.TreePlan:
    """The plan of one request with `parents` over `table`, a [1, blocks] int32 block table."""
    return treeattn.plan_tree(
        torch.tensor(parents, dtype=torch.int32),
        torch.tensor([0, len(parents)], dtype=torch.int32),
        torch.tensor([case.ctx], dtype=torch.int32),
        table,
        block_size=case.block_size,
        num_qo_heads=case.model.num_qo_heads,
        num_kv_heads=case.model.num_kv_heads,
        max_depth=max(trees.depths(parents)),
    )
