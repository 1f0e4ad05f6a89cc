# SPDX-License-Identifier: Apache-2.0
"""Paged KV of one model: the pools of all layers, and who owns which block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeattn.decoder.config import ModelConfig
from treeattn.kv_cache import BlockPool
from treeattn.plan import TreePlan, plan_tree
from treeattn.tree import TreeBatch


@dataclass(frozen=True, eq=False)
class PagedCache:
    """k, v: [L, num_blocks, block_size, num_kv_heads, head_dim]."""

    k: Tensor
    v: Tensor
    pool: BlockPool
    num_qo_heads: int

    @property
    def num_blocks(self) -> int:
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        return self.k.shape[2]

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def reserve(self, seq: int, num_nodes: int) -> None:
        """Make room for a tree behind the committed tokens, copying a shared tail block.

        Raises OutOfBlocks.
        """
        for src, dst in self.pool.reserve(seq, num_nodes):
            for cache in (self.k, self.v):
                cache[:, dst] = cache[:, src]

    def plan(self, batch: TreeBatch, seqs: Sequence[int], context_lens: Sequence[int]) -> TreePlan:
        """The plan of one forward pass; request b of `batch` is sequence `seqs[b]`."""
        tables = [self.pool.block_table(seq) for seq in seqs]
        width = max(map(len, tables), default=0)
        padded = [table + [-1] * (width - len(table)) for table in tables]
        device = self.k.device
        return plan_tree(
            batch.parents,
            batch.node_indptr,
            torch.tensor(context_lens, dtype=torch.int32, device=device),
            torch.tensor(padded, dtype=torch.int32, device=device),
            block_size=self.block_size,
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.k.shape[3],
            max_depth=batch.max_depth,
        )


def allocate_cache(
    config: ModelConfig,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> PagedCache:
    """Uninitialised pools for every layer; slots that were never written are never read."""
    shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
    return PagedCache(
        k=torch.empty(shape, dtype=dtype, device=device),
        v=torch.empty(shape, dtype=dtype, device=device),
        pool=BlockPool(num_blocks, block_size),
        num_qo_heads=config.num_qo_heads,
    )
