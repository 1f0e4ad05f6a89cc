# SPDX-License-Identifier: Apache-2.0
"""A tiny numerical check per op against the reference, a few milliseconds each; for the doctor."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor

AVAILABLE = "available"
NOT_BUILT = "not built"
Api: TypeAlias = ModuleType | SimpleNamespace  # the ops under their own names, or the reference
_NUM_QO_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _BLOCK_SIZE, _VOCAB = 4, 2, 32, 2, 16
_TOLERANCE = 1e-5
_PLAN_FIELDS = ("depths", "positions", "slot_mapping", "ancestors")
_PATH_FIELDS = ("path", "num_accepted", "next_tokens", "status", "emitted")


def check(op: str, device: str) -> str:
    """`available`, `not built`, or `failed self-test: <what was seen>`; never raises."""
    key = {"cpu": "CPU", "cuda": "CUDA"}[device]
    try:
        built = torch._C._dispatch_has_kernel_for_dispatch_key(f"treeattn::{op}", key)
    except RuntimeError:  # no such op
        built = False
    if not built:
        return NOT_BUILT
    if device == "cuda" and not torch.cuda.is_available():
        return "built, but there is no GPU to try it on"
    try:
        from treeattn import ops, plan, reference

        api = SimpleNamespace(**{**vars(ops), "plan_tree": plan.plan_tree})
        seen = [tensor.cpu() for tensor in _RUN[op](api, device)]
        wanted = _RUN[op](reference, "cpu")
    except Exception as error:
        return f"failed self-test: {type(error).__name__}: {str(error).splitlines()[0]}"
    return _compare(seen, wanted)


def _compare(seen: list[Tensor], wanted: list[Tensor]) -> str:
    for index, (ours, theirs) in enumerate(zip(seen, wanted, strict=True)):
        if ours.shape != theirs.shape:
            return f"failed self-test: result {index} has shape {tuple(ours.shape)}"
        if not torch.allclose(ours.double(), theirs.double(), rtol=0, atol=_TOLERANCE):
            error = (ours.double() - theirs.double()).abs().max().item()
            return f"failed self-test: result {index} is off by {error:.3g}"
    return AVAILABLE


def _plan(api: Api, device: str) -> Any:
    """Two requests of 4 and 2 nodes after 3 and 1 committed tokens."""

    def index(values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return api.plan_tree(
        index([-1, 0, 0, 1, -1, 0]),
        index([0, 4, 6]),
        index([3, 1]),
        index([[5, 1, 7, 3], [2, 0, 4, 6]]),
        block_size=_BLOCK_SIZE,
        num_qo_heads=_NUM_QO_HEADS,
        num_kv_heads=_NUM_KV_HEADS,
    )


def _random(seed: int, device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _pools(device: str) -> list[Tensor]:
    return [_random(seed, device, 8, _BLOCK_SIZE, _NUM_KV_HEADS, _HEAD_DIM) for seed in (1, 2)]


def _accept(api: Api, device: str, plan: Any) -> Any:
    tokens = torch.tensor([9, 1, 2, 3, 9, 5], dtype=torch.int64, device=device)
    logits = _random(3, "cpu", 6, _VOCAB)
    logits[0, 1] = logits[1, 3] = logits[4, 7] = 9.0  # accepts nodes 1 and 3, then none
    return api.accept_path(logits.to(device), tokens, plan, rule="greedy")


def _run_plan_tree(api: Api, device: str) -> list[Tensor]:
    plan = _plan(api, device)
    return [getattr(plan, field) for field in _PLAN_FIELDS]


def _run_write_kv(api: Api, device: str) -> list[Tensor]:
    pools = _pools(device)
    rows = [_random(seed, device, 3, _NUM_KV_HEADS, _HEAD_DIM) for seed in (4, 5)]
    api.write_kv(*rows, *pools, torch.tensor([7, -1, 2], dtype=torch.int64, device=device))
    return pools


def _run_tree_attention(api: Api, device: str) -> list[Tensor]:
    q = _random(6, device, 6, _NUM_QO_HEADS, _HEAD_DIM)
    out, lse = api.tree_attention(q, *_pools(device), _plan(api, device), return_lse=True)
    return [out, lse]


def _run_accept_path(api: Api, device: str) -> list[Tensor]:
    accepted = _accept(api, device, _plan(api, device))
    return [getattr(accepted, field) for field in _PATH_FIELDS]


def _run_remap_kv(api: Api, device: str) -> list[Tensor]:
    plan = _plan(api, device)
    k_cache, v_cache = _pools(device)
    api.remap_kv([k_cache], [v_cache], plan, _accept(api, device, plan))
    table = plan.block_table.long()  # compare what each logical slot holds, not where it lies
    rows = [pool[table[0]].flatten(0, 1)[:6] for pool in (k_cache, v_cache)]
    return rows + [pool[table[1]].flatten(0, 1)[:2] for pool in (k_cache, v_cache)]


def _run_merge_states(api: Api, device: str) -> list[Tensor]:
    outs = [_random(seed, device, 3, _NUM_QO_HEADS, _HEAD_DIM) for seed in (7, 8)]
    lses = [_random(seed, device, 3, _NUM_QO_HEADS) for seed in (9, 10)]
    return list(api.merge_states(outs[0], lses[0], outs[1], lses[1]))


_RUN: dict[str, Callable[[Api, str], list[Tensor]]] = {
    "plan_tree": _run_plan_tree,
    "write_kv": _run_write_kv,
    "tree_attention": _run_tree_attention,
    "accept_path": _run_accept_path,
    "remap_kv": _run_remap_kv,
    "merge_states": _run_merge_states,
}
