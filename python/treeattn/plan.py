# SPDX-License-Identifier: Apache-2.0
"""The plan of one verify step: made once, read by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treeattn import _library, _namespace

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
REMAP_HEADER = 4  # elements at the front of `work` that are remap_kv's


@dataclass(frozen=True, eq=False)
class TreePlan:
    """Everything about a batch of draft trees that follows from `parents`.

    B requests, N nodes over all requests. `block_table` and the other index tensors alias the
    caller's when those were int32 and contiguous; `remap_kv` re-points `block_table` in place.
    """

    parents: Tensor  # [N] int32, within the request; -1 at the root
    node_indptr: Tensor  # [B + 1] int32
    context_lens: Tensor  # [B] int32
    block_table: Tensor  # [B, max_blocks] int32
    depths: Tensor  # [N] int32
    positions: Tensor  # [N] int32, context_len + depth
    slot_mapping: Tensor  # [N] int64, physical slots
    ancestors: Tensor  # [N, W] int32 bit words, W = ceil(largest tree / 32)
    order: Tensor  # [N] int32, each request's node ids in depth-first order
    status: Tensor  # [B] int32: 0 ok, 3 inactive, 4 invalid
    block_size: int
    max_depth: int
    num_qo_heads: int
    num_kv_heads: int
    batch_invariant: bool
    work: Tensor | None = None  # what CUDA's kernels need beside it; one stream at a time

    @property
    def num_requests(self) -> int:
        return self.context_lens.shape[0]

    @property
    def num_nodes(self) -> int:
        return self.parents.shape[0]


def plan_tree(
    parents: Tensor,
    node_indptr: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    num_qo_heads: int,
    num_kv_heads: int,
    slot_mapping: Tensor | None = None,
    max_depth: int | None = None,
    batch_invariant: bool = False,
) -> TreePlan:
    """Plan one verify step over a ragged batch of trees.

    parents: [N], node_indptr: [B + 1], context_lens: [B], block_table: [B, max_blocks] and
    slot_mapping: [N] (default: logical slot context_len + node) are int32 or int64.
    max_depth: an upper bound on the depth of any tree. When given, rows past node_indptr[B] belong
    to nobody, and on CUDA nothing is read back to the host.
    batch_invariant: on CUDA, split keys by each request's own lengths only; always so on CPU.

    Raises ValueError for a wrong shape, dtype, device or topology, a block table too short for
    context_len, or slots that collide. On CUDA with max_depth a request that is wrong in itself
    gets status 4 instead, and slots are not compared.
    """
    _check_heads(num_qo_heads, num_kv_heads)
    parents = _as_int32("parents", parents)
    node_indptr = _as_int32("node_indptr", node_indptr)
    context_lens = _as_int32("context_lens", context_lens)
    block_table = _as_int32("block_table", block_table)
    if slot_mapping is not None:
        check_index_dtype("plan_tree", "slot_mapping", slot_mapping)
        slot_mapping = slot_mapping.to(torch.int64)
    num_nodes = parents.numel()
    num_words = _num_words(node_indptr, num_nodes, max_depth)
    inputs = (parents, node_indptr, context_lens, block_table, slot_mapping)
    _library.require()
    work = None
    if _namespace.runs_on_device(parents):
        if max_depth is None:  # what a device could only report as a status is raised here
            on_host = [None if x is None else x.cpu() for x in inputs]
            host_depths = _derive(torch.ops.treeattn, on_host, block_size, None, num_words, None)[0]
            max_depth = int(host_depths.max()) if num_nodes else 0
        work = parents.new_empty(
            _work_size(num_nodes, len(context_lens), num_qo_heads, num_kv_heads)
        )
    derived = _derive(_namespace.ops, inputs, block_size, max_depth, num_words, work)
    depths, positions, slots, ancestors, order, status = derived
    if max_depth is None:
        max_depth = int(depths.max()) if num_nodes else 0
    return TreePlan(
        parents=parents,
        node_indptr=node_indptr,
        context_lens=context_lens,
        block_table=block_table,
        depths=depths,
        positions=positions,
        slot_mapping=slots,
        ancestors=ancestors,
        order=order,
        status=status,
        block_size=block_size,
        max_depth=max_depth,
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        batch_invariant=batch_invariant,
        work=work,
    )


def _derive(
    ops: Any,
    inputs: Sequence[Tensor | None],
    block_size: int,
    max_depth: int | None,
    num_words: int,
    work: Tensor | None,
) -> tuple[Tensor, ...]:
    """depths, positions, slot_mapping, ancestors, order and status, by the op of one device."""
    parents, _, context_lens, _, _ = inputs
    assert parents is not None and context_lens is not None
    num_nodes = parents.numel()
    depths, positions, order = (parents.new_empty(num_nodes) for _ in range(3))
    slots = torch.empty(num_nodes, dtype=torch.int64, device=parents.device)
    ancestors = parents.new_empty(num_nodes, num_words)
    status = torch.empty_like(context_lens)
    derived = (depths, positions, slots, ancestors, order, status)
    ops.plan_tree(*inputs, block_size, max_depth, *derived, work)
    return derived


def _work_size(num_nodes: int, num_requests: int, num_qo_heads: int, num_kv_heads: int) -> int:
    """Elements of `work`, laid out by csrc/cuda/common/plan_work.h."""
    row_tiles = num_nodes * (num_qo_heads // num_kv_heads) // 64 + num_requests + 1
    return REMAP_HEADER + num_requests + num_nodes + row_tiles * num_kv_heads


def _num_words(node_indptr: Tensor, num_nodes: int, max_depth: int | None) -> int:
    """Words per ancestor row; by the largest tree where its size may be read."""
    largest = num_nodes
    if (
        node_indptr.dim() == 1
        and len(node_indptr) > 1
        and (max_depth is None or not _namespace.runs_on_device(node_indptr))
    ):
        largest = min(num_nodes, max(b - a for a, b in pairwise([0, *node_indptr.tolist()])))
    return (largest + 31) // 32


def _check_heads(num_qo_heads: int, num_kv_heads: int) -> None:
    if num_kv_heads < 1 or num_qo_heads < 1 or num_qo_heads % num_kv_heads:
        raise ValueError(
            "plan_tree: num_qo_heads must be a positive multiple of num_kv_heads, "
            f"got {num_qo_heads} and {num_kv_heads}"
        )


def check_index_dtype(op: str, name: str, index: Tensor) -> None:
    if index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{op}: {name} must be int32 or int64, got {index.dtype}")


def _as_int32(name: str, index: Tensor) -> Tensor:
    """`index` itself when it is int32 and contiguous; int64 saturates, so no value turns valid."""
    check_index_dtype("plan_tree", name, index)
    if index.dtype == torch.int64:
        index = index.clamp(_INT32_MIN, _INT32_MAX).to(torch.int32)
    return index.contiguous()
