# SPDX-License-Identifier: Apache-2.0
"""Tree attention as other GPU libraries do it, each in its best form that is installed here.

FlashInfer reads the blocks in place. The others need contiguous KV, so their calls gather first.
Packing, masks and FlashInfer's plan are made ahead and cost the peers nothing.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.cuda_problem import Batch
from bench.peers.attention import Unavailable

Run = Callable[[int], Tensor]  # pool -> [B * n, num_qo_heads, head_dim]
WORKSPACE_BYTES = 256 << 20


def make(batch: Batch) -> tuple[dict[str, Run], dict[str, str]]:
    """(peers by name, reason by name of those that cannot run)."""
    peers: dict[str, Run] = {}
    skipped: dict[str, str] = {}
    for name, (package, maker) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            skipped[name] = f"{package} is not installed"
            continue
        try:
            peers[name] = maker(batch)
        except Exception as error:  # whatever the library raises for a shape it does not know
            skipped[name] = f"{type(error).__name__}: {str(error).strip()[:200]}"
    return peers, skipped


def _sdpa(x: Batch) -> Run:
    """Query heads of a group packed into rows, the mask additive in q's dtype."""
    model, n = x.case.model, x.num_nodes
    rows = n * model.group
    by_group = x.q.view(x.num_requests, n, model.num_kv_heads, model.group, model.head_dim)
    q = by_group.transpose(1, 2).reshape(x.num_requests, model.num_kv_heads, rows, -1)
    seen = x.mask()
    mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, -math.inf)
    mask = mask.repeat_interleave(model.group, 0)[None, None]

    def run(pool: int) -> Tensor:
        out = F.scaled_dot_product_attention(q, *x.gathered(pool), attn_mask=mask)
        nodes = out.view(x.num_requests, model.num_kv_heads, n, model.group, -1)
        return nodes.transpose(1, 2).reshape(x.q.shape)

    return run


def _flex(x: Batch) -> Run:
    """FlexAttention through torch.compile (Triton), the ancestor mask as its mask_mod."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    seen, ctx, n = x.visible(), x.case.ctx, x.num_nodes

    def visible(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (key < ctx) | seen[row, (key - ctx).clamp(0, n - 1)]

    mask = create_block_mask(visible, None, None, n, x.num_keys, device=str(x.q.device))
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    q = x.q.view(x.num_requests, n, *x.q.shape[1:]).transpose(1, 2).contiguous()

    def run(pool: int) -> Tensor:
        out = compiled(q, *x.gathered(pool), block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out.transpose(1, 2).reshape(x.q.shape)

    return run


def _flashinfer_heads(x: Batch) -> dict[str, Any]:
    model = x.case.model
    return {
        "num_qo_heads": model.num_qo_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim_qk": model.head_dim,
        "q_data_type": x.q.dtype,
    }


def _pages(x: Batch, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """FlashInfer's page table of the first `keys` keys: offsets, indices, rows of the last page."""
    used = -(-keys // x.case.block_size)
    offsets = torch.arange(x.num_requests + 1, dtype=torch.int32, device=x.q.device) * used
    last = torch.full_like(offsets[1:], keys - (used - 1) * x.case.block_size)
    return offsets, x.table[:, :used].flatten().contiguous(), last


def _flashinfer_mask(x: Batch) -> Run:
    """One call over the blocks with FlashInfer's custom mask."""
    import flashinfer

    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=x.q.device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        x.plan.node_indptr,
        *_pages(x, x.num_keys),
        page_size=x.case.block_size,
        custom_mask=x.mask().flatten().repeat(x.num_requests),
        **_flashinfer_heads(x),
    )
    return lambda pool: wrapper.run(x.q, x.pools[pool])


def _flashinfer_cascade(x: Batch) -> Run:
    """The context without a mask, the tree with one, and a merge of the two."""
    import flashinfer

    if x.case.ctx == 0:
        raise Unavailable("there is no context to split off")
    buffers = torch.empty(2, WORKSPACE_BYTES, dtype=torch.uint8, device=x.q.device)
    context = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffers[0], "NHD")
    context.plan(
        x.plan.node_indptr,
        *_pages(x, x.case.ctx),
        page_size=x.case.block_size,
        causal=False,
        **_flashinfer_heads(x),
    )
    tree = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffers[1], "NHD")
    tree.plan(
        x.plan.node_indptr,
        x.plan.node_indptr,
        custom_mask=x.visible().flatten().repeat(x.num_requests),
        **_flashinfer_heads(x),
    )

    def run(pool: int) -> Tensor:
        k, v = (plane.flatten(0, 1)[x.plan.slot_mapping] for plane in x.pools[pool])
        parts = (
            *context.run(x.q, x.pools[pool], return_lse=True),
            *tree.run(x.q, k, v, return_lse=True),
        )
        out: Tensor = flashinfer.merge_state(*parts)[0]
        return out

    return run


def _flash_attn(x: Batch) -> Run:
    """Causal: right for chains only, and what a mask costs elsewhere is measured against it."""
    if x.parents != list(range(-1, x.num_nodes - 1)):
        raise Unavailable("has no tree mask; it runs on chains")
    import flash_attn

    q = x.q.view(x.num_requests, x.num_nodes, *x.q.shape[1:])

    def run(pool: int) -> Tensor:
        k, v = (plane.transpose(1, 2) for plane in x.gathered(pool))
        out: Tensor = flash_attn.flash_attn_func(q, k, v, causal=True)
        return out.reshape(x.q.shape)

    return run


# name -> (package, maker)
PEERS: dict[str, tuple[str, Callable[[Batch], Run]]] = {
    "flashinfer_mask": ("flashinfer", _flashinfer_mask),
    "flashinfer_cascade": ("flashinfer", _flashinfer_cascade),
    "flash_attn_causal": ("flash_attn", _flash_attn),
    "flex_attention": ("triton", _flex),
    "sdpa_packed": ("torch", _sdpa),
}
