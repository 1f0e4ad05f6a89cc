# SPDX-License-Identifier: Apache-2.0
"""The ops of treeattn: thin wrappers that allocate results and call _namespace.ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from treeattn import _library, _namespace
from treeattn.accept import RULES, AcceptedPath, accept_path
from treeattn.plan import REMAP_HEADER, TreePlan, check_index_dtype

Scale: TypeAlias = float | Tensor | None

__all__ = [
    "RULES",
    "AcceptedPath",
    "accept_path",
    "merge_states",
    "remap_kv",
    "tree_attention",
    "write_kv",
]


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Scale = None,
    v_scale: Scale = None,
) -> None:
    """Store each node's key and value in its slot of the pools, in place.

    k, v: [N, num_kv_heads, head_dim], any strides in the first two dimensions.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], modified.
    slot_mapping: [N] int32 or int64 physical slots; -1 skips the row.
    k_scale, v_scale: float or [num_kv_heads] fp32, for fp8 (e4m3) pools only, where None means 1:
    x / scale is rounded to nearest even and saturated at +-448.

    Raises ValueError, before anything is written, for a slot below -1 or past the pool.
    """
    check_index_dtype("write_kv", "slot_mapping", slot_mapping)
    _library.require()
    _namespace.ops.write_kv(
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping.to(torch.int64),
        _scale_tensor(k_scale, k_cache),
        _scale_tensor(v_scale, v_cache),
    )


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: TreePlan,
    *,
    sm_scale: float | None = None,
    window: int | None = None,
    logits_soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend from every node to its request's context, its ancestors and itself, over paged KV.

    q: [N, num_qo_heads, head_dim] fp32, bf16 or fp16; the pools have q's dtype or are fp8 (e4m3).
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], head_dim contiguous.
    sm_scale: default 1 / sqrt(head_dim). Order: sm_scale, soft cap `cap * tanh(s / cap)`, ALiBi,
    mask, sink.
    window: keys whose position is > position(node) - window are seen (depth, not slot index).
    sinks: [num_qo_heads] fp32, one extra logit in the denominator.
    alibi_slopes: [num_qo_heads] fp32, adds slope * (key_position - query_position).
    k_scale, v_scale: float or [num_kv_heads] fp32; for fp8 pools, where None means 1.
    out: written and returned when given; q's shape, dtype and device.

    Returns out, or (out, lse) with lse [N, num_qo_heads] fp32, the natural log of the denominator.
    A row that sees nothing is 0 with lse -inf. Whatever unseen slots hold has no influence.
    """
    _check_plan_heads(plan, q, k_cache)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
    on_device = _namespace.runs_on_device(q)
    num_ctas = _namespace.num_ctas(q) if on_device else 1
    _library.require()
    _namespace.ops.tree_attention(
        q,
        k_cache,
        v_cache,
        plan.node_indptr,
        plan.context_lens,
        plan.block_table,
        plan.depths,
        plan.slot_mapping,
        plan.ancestors,
        plan.order,
        plan.status,
        plan.block_size,
        q.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        window,
        logits_soft_cap,
        sinks,
        alibi_slopes,
        _scale_tensor(k_scale, k_cache),
        _scale_tensor(v_scale, v_cache),
        out,
        lse,
        plan.work,
        _attention_states(plan, q, num_ctas) if on_device else None,
        num_ctas,
        plan.batch_invariant,
    )
    return out if lse is None else (out, lse)


def remap_kv(
    k_caches: Tensor | Sequence[Tensor],
    v_caches: Tensor | Sequence[Tensor],
    plan: TreePlan,
    accepted: AcceptedPath,
    *,
    k_scales: Tensor | Sequence[Tensor] | None = None,
    v_scales: Tensor | Sequence[Tensor] | None = None,
) -> Tensor:
    """Move the KV rows of each accepted path to slots context_len .. + num_accepted, in place.

    k_caches, v_caches: one [num_blocks, block_size, num_kv_heads, head_dim] pool per layer, or one
    stacked [L, ...] tensor. k_scales, v_scales: [num_blocks, block_size, num_kv_heads] likewise.
    Rows already in place are not touched; a whole aligned block of the path is re-pointed in
    `plan.block_table` instead of copied.

    Returns moved: [B] int32, rows copied per layer and plane.
    """
    moved = torch.empty_like(plan.context_lens)
    workspace = _remap_workspace(k_caches, plan, accepted)
    _library.require()
    _namespace.ops.remap_kv(
        _as_list(k_caches),
        _as_list(v_caches),
        _as_list(k_scales),
        _as_list(v_scales),
        plan.node_indptr,
        plan.context_lens,
        plan.block_table,
        plan.slot_mapping,
        accepted.path,
        accepted.num_accepted,
        accepted.status,
        plan.block_size,
        moved,
        _remap_work(plan),
        workspace,
    )
    return moved


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine two attention results over disjoint key sets by their log-sum-exps.

    out_a, out_b: [N, num_heads, head_dim] fp32, bf16 or fp16; lse_a, lse_b: [N, num_heads] fp32.
    Any strides in the first two dimensions.
    (0, -inf) is the identity, bitwise; merging two of them gives (0, -inf).
    """
    out = torch.empty(out_a.shape, dtype=out_a.dtype, device=out_a.device)
    lse = torch.empty(lse_a.shape, dtype=torch.float32, device=out_a.device)
    _library.require()
    _namespace.ops.merge_states(out_a, lse_a, out_b, lse_b, out, lse)
    return out, lse


def _check_plan_heads(plan: TreePlan, q: Tensor, k_cache: Tensor) -> None:
    """The plan's head counts are the call's; what has no heads to compare is left to the op."""
    if q.dim() != 3 or k_cache.dim() != 4:
        return
    heads = q.shape[1], k_cache.shape[2]
    if heads != (plan.num_qo_heads, plan.num_kv_heads):
        raise ValueError(
            "tree_attention: num_qo_heads of q and num_kv_heads of k_cache must be the plan's, "
            f"{plan.num_qo_heads} and {plan.num_kv_heads}, got {heads[0]} and {heads[1]}"
        )


def _remap_workspace(
    k_caches: Tensor | Sequence[Tensor], plan: TreePlan, accepted: AcceptedPath
) -> Tensor | None:
    """What devices need: remap_kv_workspace_size int32 (csrc/include/treeattn/remap_kv.h)."""
    if not _namespace.runs_on_device(plan.block_table):
        return None
    pools = _as_list(k_caches)
    num_blocks = pools[0].shape[-4] if pools and pools[0].dim() >= 4 else 0
    size = plan.num_requests * (18 * accepted.path.shape[-1] + 7) + num_blocks + 2
    return plan.context_lens.new_empty(size)


def _remap_work(plan: TreePlan) -> Tensor | None:
    """The plan's counters for devices; new ones for a plan that was made elsewhere."""
    if plan.work is None and _namespace.runs_on_device(plan.block_table):
        return plan.context_lens.new_zeros(REMAP_HEADER)
    return plan.work


def _attention_states(plan: TreePlan, q: Tensor, num_ctas: int) -> Tensor:
    """Room for partial results, laid out by csrc/cuda/tree_attention: two row tiles per CTA, or,
    batch invariant, one for every 4096 keys that a row of the table can hold."""
    count = 2 * num_ctas
    if plan.batch_invariant:
        most_keys = plan.block_table.shape[1] * plan.block_size + plan.num_nodes
        parts = -(-most_keys // 4096)
        group_size = plan.num_qo_heads // plan.num_kv_heads
        row_tiles = plan.num_nodes * group_size // 64 + plan.num_requests
        count = parts * row_tiles * plan.num_kv_heads if parts > 1 else 0
    head_dim = q.shape[-1]
    padded_dim = 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256
    size = 0 if q.dtype == torch.float32 else count * 64 * (padded_dim + 8)
    return torch.empty(size, dtype=torch.float32, device=q.device)


def _scale_tensor(scale: Scale, like: Tensor) -> Tensor | None:
    if scale is None:
        return None
    if isinstance(scale, Tensor):
        return scale.reshape(1) if scale.dim() == 0 else scale
    return like.new_full((1,), scale, dtype=torch.float32)  # a graph can capture it


def _as_list(planes: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    """Per-layer tensors; a stacked [L, ...] tensor stays one entry that the op unstacks."""
    if isinstance(planes, list):
        return planes
    if planes is None:
        return []
    return [planes] if isinstance(planes, Tensor) else list(planes)
