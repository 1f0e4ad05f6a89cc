# SPDX-License-Identifier: Apache-2.0
"""Where the rows of an accepted path must be, moved one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from treeattn.plan import TreePlan

if TYPE_CHECKING:
    from treeattn.ops import AcceptedPath


def remap_kv(
    k_caches: Tensor | Sequence[Tensor],
    v_caches: Tensor | Sequence[Tensor],
    plan: TreePlan,
    accepted: AcceptedPath,
    *,
    k_scales: Tensor | Sequence[Tensor] | None = None,
    v_scales: Tensor | Sequence[Tensor] | None = None,
) -> Tensor:
    """As `treeattn.remap_kv`; nothing is checked."""
    planes = [
        plane for planes in (k_caches, v_caches, k_scales, v_scales) for plane in _layers(planes)
    ]
    moves: list[tuple[int, int]] = []
    moved = []
    for b in range(plan.num_requests):
        path = [node for node in accepted.path[b].tolist() if node >= 0]
        if int(accepted.status[b]) in (3, 4) or not path:
            moved.append(0)
            continue
        path = path[: int(accepted.num_accepted[b]) + 1]
        start = int(plan.node_indptr[b])
        context_len = int(plan.context_lens[b])
        sources = [int(plan.slot_mapping[start + node]) for node in path]
        table = plan.block_table[b]
        _repoint(table, plan.block_size, context_len, path, sources)
        targets = [_slot(table, plan.block_size, context_len + k) for k in range(len(path))]
        pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s != t]
        moves += pairs
        moved.append(len(pairs))
    for plane in planes:
        rows = [_row(plane, source, plan.block_size).clone() for source, _ in moves]
        for row, (_, target) in zip(rows, moves, strict=True):
            _row(plane, target, plan.block_size).copy_(row)
    return torch.tensor(moved, dtype=torch.int32)


def _repoint(
    table: Tensor, block_size: int, context_len: int, path: list[int], sources: list[int]
) -> None:
    """Swap in each block that is a whole aligned block of the path under the default mapping."""
    by_default = {
        k: context_len + node
        for k, node in enumerate(path)
        if (context_len + node) // block_size < len(table)
        and _slot(table, block_size, context_len + node) == sources[k]
    }
    for target in range(-(-context_len // block_size), (context_len + len(path)) // block_size):
        rows = range(target * block_size - context_len, (target + 1) * block_size - context_len)
        homes = [by_default.get(k) for k in rows]
        if homes[0] is None or homes[0] % block_size:
            continue
        if homes == list(range(homes[0], homes[0] + block_size)):
            source = homes[0] // block_size
            table[[target, source]] = table[[source, target]]


def _slot(table: Tensor, block_size: int, logical: int) -> int:
    return int(table[logical // block_size]) * block_size + logical % block_size


def _row(plane: Tensor, slot: int, block_size: int) -> Tensor:
    return plane[slot // block_size, slot % block_size]


def _layers(planes: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    return [] if planes is None else list(planes)
