# SPDX-License-Identifier: Apache-2.0
"""Batches for remap_kv: random trees and accepted paths over pools of random bits."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from treeattn.ops import AcceptedPath
from treeattn.plan import TreePlan, plan_tree

from support.acceptance import on
from support.accepted import accepted_path
from support.paged import make_pools, random_bits, random_block_table
from support.trees import pack_parents, random_parents, random_path


@dataclass(frozen=True)
class Case:
    name: str
    sizes: tuple[int, ...] = (9, 0, 14, 1)
    block_size: int = 4
    layout: str = "nhd"
    dtype: torch.dtype = torch.float32
    num_layers: int = 2
    num_heads: int = 2
    head_dim: int = 8
    branching: float = 0.5
    scales: bool = False
    custom_slots: bool = False
    max_depth: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass
class Batch:
    k_caches: Tensor | list[Tensor]
    v_caches: Tensor | list[Tensor]
    k_scales: Tensor | list[Tensor] | None
    v_scales: Tensor | list[Tensor] | None
    plan: TreePlan
    accepted: AcceptedPath

    def planes(self) -> list[Tensor]:
        parts = (self.k_caches, self.v_caches, self.k_scales, self.v_scales)
        return [plane for part in parts if part is not None for plane in part]

    def on(self, device: str) -> Batch:
        def moved(pools: Tensor | list[Tensor] | None) -> Any:
            if isinstance(pools, list):
                return [pool.to(device) for pool in pools]
            return pools if pools is None else pools.to(device)

        accepted = vars(self.accepted).items()
        return Batch(
            moved(self.k_caches),
            moved(self.v_caches),
            moved(self.k_scales),
            moved(self.v_scales),
            on(device, self.plan),
            replace(self.accepted, **{k: v.to(device) for k, v in accepted if v is not None}),
        )

    def arguments(self) -> dict[str, Any]:
        return dict(vars(self))


def make(case: Case, seed: int) -> Batch:
    rng = random.Random(seed)
    trees = [random_parents(rng, size, case.branching) for size in case.sizes]
    context_lens = [rng.randrange(0, 3 * case.block_size + 2) for _ in trees]
    parents, node_indptr = pack_parents(trees)
    num_nodes = len(parents)
    slots = [c + len(tree) if tree else 0 for c, tree in zip(context_lens, trees, strict=True)]
    num_blocks = sum(slots) // case.block_size + len(slots) + 4 + num_nodes
    table = random_block_table(rng, slots, case.block_size, num_blocks=num_blocks)
    slot_mapping = None
    if case.custom_slots:
        # Any slot that is nobody's context: other requests' tails included, so moves may cross.
        committed = {
            int(table[b, s // case.block_size]) * case.block_size + s % case.block_size
            for b, tree in enumerate(trees)
            if tree
            for s in range(context_lens[b])
        }
        tails = {
            int(table[b, s // case.block_size]) * case.block_size + s % case.block_size
            for b, tree in enumerate(trees)
            for s in range(context_lens[b], slots[b])
        }
        free = sorted(set(range(num_blocks * case.block_size)) - committed)
        pick = sorted(tails) + rng.sample(free, min(len(free), num_nodes))
        pick = list(dict.fromkeys(pick))
        rng.shuffle(pick)
        slot_mapping = torch.tensor(pick[:num_nodes], dtype=torch.int64)
    plan = plan_tree(
        parents,
        node_indptr,
        torch.tensor(context_lens, dtype=torch.int32),
        table,
        block_size=case.block_size,
        num_qo_heads=case.num_heads,
        num_kv_heads=case.num_heads,
        slot_mapping=slot_mapping,
        max_depth=case.max_depth,
    )
    paths = [random_path(rng, tree) if tree else None for tree in trees]
    generator = torch.Generator().manual_seed(seed)
    shape = (num_blocks, case.block_size, case.num_heads, case.head_dim)
    k, v = make_pools(case.layout, case.num_layers, shape, case.dtype, generator)
    k_scales: Tensor | list[Tensor] | None = None
    v_scales: Tensor | list[Tensor] | None = None
    if case.scales:
        stacked = random_bits((2, case.num_layers, *shape[:3]), torch.float32, generator)
        k_scales, v_scales = stacked[0], list(stacked[1])
    return Batch(k, v, k_scales, v_scales, plan, accepted_path(paths, plan.max_depth + 1))


CASES = [
    *(Case(f"block_{n}", block_size=n) for n in (1, 2, 3, 4, 8, 16)),
    *(Case(f"chain_block_{n}", block_size=n, branching=0.1) for n in (1, 2, 3, 4)),
    *(Case(layout, layout=layout) for layout in ("hnd", "joint", "padded", "stacked")),
    Case("bf16", dtype=torch.bfloat16, block_size=2),
    Case("fp16", dtype=torch.float16),
    Case("fp8_scales", dtype=torch.float8_e4m3fn, scales=True, block_size=2),
    Case("scales_stacked", layout="stacked", scales=True),
    Case("large_trees", sizes=(64, 100, 33), block_size=2, branching=0.2),
    Case("many_requests", sizes=(5,) * 40, block_size=4, num_layers=1),
    Case("wide_path", max_depth=40),
    Case("one_layer", num_layers=1),
    Case("odd_bytes", num_heads=3, head_dim=5, dtype=torch.bfloat16),
    Case("custom_slots", custom_slots=True),
    Case("custom_slots_block_1", custom_slots=True, block_size=1),
    Case("custom_slots_hnd", custom_slots=True, layout="hnd", sizes=(12, 20, 3)),
    Case("nobody", sizes=(0, 0)),
    Case("empty_batch", sizes=()),
]


def slot_of(table: Tensor, block_size: int, logical: int) -> tuple[int, int]:
    return int(table[logical // block_size]), logical % block_size
