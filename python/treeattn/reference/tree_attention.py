# SPDX-License-Identifier: Apache-2.0
"""Oracle of write_kv, tree_attention and merge_states: dense, one row at a time, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from treeattn.plan import TreePlan

FP8_MAX = 448.0


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | float = 1.0,
    v_scale: Tensor | float = 1.0,
) -> None:
    """Store each row at its slot; see `treeattn.write_kv`."""
    block_size = k_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        for x, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
            value = x[row].float()
            if cache.dtype == torch.float8_e4m3fn:
                per_head = torch.as_tensor(scale, dtype=torch.float32).reshape(-1, 1)
                value = (value / per_head).clamp(-FP8_MAX, FP8_MAX)
            cache[slot // block_size, slot % block_size] = value.to(cache.dtype)


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
    k_scale: Tensor | float = 1.0,
    v_scale: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Attend each node over its own key list, as the op says; returns float64 out and lse."""
    num_nodes, num_qo_heads, head_dim = q.shape
    group = num_qo_heads // k_cache.shape[2]
    out = torch.zeros(num_nodes, num_qo_heads, head_dim, dtype=torch.float64)
    lse = torch.full((num_nodes, num_qo_heads), float("-inf"), dtype=torch.float64)
    parents = plan.parents.tolist()
    indptr = plan.node_indptr.tolist()
    for request, context_len in enumerate(plan.context_lens.tolist()):
        if plan.status[request] != 0:
            continue
        begin = indptr[request]
        for node in range(indptr[request + 1] - begin):
            path = [node]
            while parents[begin + path[0]] >= 0:
                path.insert(0, parents[begin + path[0]])
            position = context_len + len(path) - 1
            slots = _context_slots(plan, request, context_len)
            slots += [int(plan.slot_mapping[begin + i]) for i in path]
            first = 0 if window is None else max(0, position - window + 1)
            keys = torch.arange(first, position + 1)
            k = _rows(k_cache, slots[first:], k_scale).repeat_interleave(group, dim=1)
            v = _rows(v_cache, slots[first:], v_scale).repeat_interleave(group, dim=1)
            row = q[begin + node].double()  # [num_qo_heads, head_dim]
            scores = torch.einsum("hd,khd->hk", row, k)
            scores = scores * (head_dim**-0.5 if sm_scale is None else sm_scale)
            if logits_soft_cap > 0:
                scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
            if alibi_slopes is not None:
                scores = scores + alibi_slopes.double()[:, None] * (keys - position)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None]], dim=1)
            lse[begin + node] = torch.logsumexp(scores, dim=1)
            weights = torch.softmax(scores, dim=1)[:, : len(keys)]
            out[begin + node] = torch.einsum("hk,khd->hd", weights, v)
    return out, lse


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Combine two results over disjoint keys, in float64; (0, -inf) is the identity."""
    lse = torch.logaddexp(lse_a.double(), lse_b.double())
    weight_a = torch.exp(lse_a.double() - lse).nan_to_num(0.0)[..., None]
    weight_b = torch.exp(lse_b.double() - lse).nan_to_num(0.0)[..., None]
    return weight_a * out_a.double() + weight_b * out_b.double(), lse


def _context_slots(plan: TreePlan, request: int, context_len: int) -> list[int]:
    size = plan.block_size
    return [
        int(plan.block_table[request, key // size]) * size + key % size
        for key in range(context_len)
    ]


def _rows(cache: Tensor, slots: list[int], scale: Tensor | float) -> Tensor:
    """[len(slots), num_kv_heads, head_dim] float64 rows of a paged pool."""
    block_size = cache.shape[1]
    index = torch.tensor(slots)
    rows = cache[index // block_size, index % block_size].double()
    return rows * torch.as_tensor(scale, dtype=torch.float64).reshape(-1, 1)
