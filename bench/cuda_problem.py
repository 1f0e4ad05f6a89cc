# SPDX-License-Identifier: Apache-2.0
"""A batch of equal trees over one paged KV cache on a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import treeattn
from torch import Tensor

from bench import trees
from bench.models import DTYPES
from bench.problem import Case


@dataclass
class Batch:
    """B requests with n nodes each, T = ctx + n keys per request; `case.pools` caches."""

    case: Case
    num_requests: int
    parents: list[int]
    q: Tensor  # [B * n, num_qo_heads, head_dim]
    pools: list[tuple[Tensor, Tensor]]  # [num_blocks, block_size, num_kv_heads, head_dim] each
    table: Tensor  # [B, blocks] int32
    plan: treeattn.TreePlan

    @property
    def num_nodes(self) -> int:
        """Of one request."""
        return len(self.parents)

    @property
    def num_keys(self) -> int:
        return self.case.ctx + self.num_nodes

    def visible(self) -> Tensor:
        """[n, n] bool: node (row) sees node (column)."""
        seen = torch.eye(self.num_nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen.to(self.q.device)

    def mask(self) -> Tensor:
        """[n, T] bool over context and nodes."""
        context = torch.ones(self.num_nodes, self.case.ctx, dtype=torch.bool, device=self.q.device)
        return torch.cat([context, self.visible()], dim=1)

    def gathered(self, pool: int) -> tuple[Tensor, Tensor]:
        """Contiguous K and V of one cache, [B, num_kv_heads, T, head_dim] each."""
        k, v = (
            plane[self.table.long()].flatten(1, 2)[:, : self.num_keys].transpose(1, 2)
            for plane in self.pools[pool]
        )
        return k.contiguous(), v.contiguous()

    def expected(self, request: int, nodes: list[int]) -> Tensor:
        """[len(nodes), num_qo_heads, head_dim] in fp64, from cache 0."""
        model = self.case.model
        k, v = (plane[request].double() for plane in self.gathered(0))
        rows = self.q[request * self.num_nodes + torch.tensor(nodes)].double()
        q = rows.view(len(nodes), model.num_kv_heads, model.group, model.head_dim)
        scores = torch.einsum("nhgd,htd->nhgt", q, k) * model.head_dim**-0.5
        scores.masked_fill_(~self.mask()[nodes][:, None, None], float("-inf"))
        out = torch.einsum("nhgt,htd->nhgd", scores.softmax(-1), v)
        return out.reshape(len(nodes), model.num_qo_heads, model.head_dim)


def build(case: Case, num_requests: int, device: str) -> Batch:
    """Random queries and caches, shuffled blocks; the plan is made on the device."""
    parents = trees.make(case.tree)
    generator = torch.Generator(device).manual_seed(case.ctx + len(parents))
    model, dtype = case.model, DTYPES[case.dtype]
    blocks = -(-(case.ctx + len(parents)) // case.block_size)
    shape = (num_requests * blocks, case.block_size, model.num_kv_heads, model.head_dim)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype, device=device)

    order = torch.randperm(num_requests * blocks, generator=generator, device=device)
    table = order.to(torch.int32).view(num_requests, blocks)
    indptr = torch.arange(num_requests + 1, dtype=torch.int32, device=device) * len(parents)
    return Batch(
        case=case,
        num_requests=num_requests,
        parents=parents,
        q=random(num_requests * len(parents), model.num_qo_heads, model.head_dim),
        pools=[(random(*shape), random(*shape)) for _ in range(case.pools)],
        table=table,
        plan=treeattn.plan_tree(
            torch.tensor(parents * num_requests, dtype=torch.int32, device=device),
            indptr,
            torch.full((num_requests,), case.ctx, dtype=torch.int32, device=device),
            table,
            block_size=case.block_size,
            num_qo_heads=model.num_qo_heads,
            num_kv_heads=model.num_kv_heads,
            max_depth=max(trees.depths(parents)),
        ),
    )
