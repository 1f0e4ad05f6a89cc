# SPDX-License-Identifier: Apache-2.0
"""A tiny numerical check per op against the reference, a few milliseconds each; for the doctor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from treeattn import ops
from treeattn.plan import TreePlan, plan_tree

Results: TypeAlias = list[Tensor]
AVAILABLE = "available"
NOT_BUILT = "not built"
_NUM_QO_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _BLOCK_SIZE, _VOCAB = 4, 2, 32, 2, 16
_TOLERANCE = 1e-5
_PLAN_FIELDS = ("depths", "positions", "slot_mapping", "ancestors")


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
        seen, wanted = _RUN[op](device)
    except Exception as error:
        return f"failed self-test: {type(error).__name__}: {str(error).splitlines()[0]}"
    return _compare([result.cpu() for result in seen], wanted)


def _compare(seen: Results, wanted: Results) -> str:
    for index, (ours, theirs) in enumerate(zip(seen, wanted, strict=True)):
        if ours.shape != theirs.shape:
            return f"failed self-test: result {index} has shape {tuple(ours.shape)}"
        if not torch.allclose(ours.double(), theirs.double(), rtol=0, atol=_TOLERANCE):
            error = (ours.double() - theirs.double()).abs().max().item()
            return f"failed self-test: result {index} is off by {error:.3g}"
    return AVAILABLE


def _batch(device: str) -> list[Tensor]:
    """Two requests of 4 and 2 nodes after 3 and 1 committed tokens."""
    parents, indptr, lens = [-1, 0, 0, 1, -1, 0], [0, 4, 6], [3, 1]
    table = [[5, 1, 7, 3], [2, 0, 4, 6]]
    rows = (parents, indptr, lens, table)
    return [torch.tensor(row, dtype=torch.int32, device=device) for row in rows]


def _plan(device: str) -> TreePlan:
    return plan_tree(
        *_batch(device),
        block_size=_BLOCK_SIZE,
        num_qo_heads=_NUM_QO_HEADS,
        num_kv_heads=_NUM_KV_HEADS,
    )


def _random(seed: int, device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _pools(device: str) -> list[Tensor]:
    return [_random(seed, device, 8, _BLOCK_SIZE, _NUM_KV_HEADS, _HEAD_DIM) for seed in (1, 2)]


def _check_plan_tree(device: str) -> tuple[Results, Results]:
    from treeattn import reference

    plan = _plan(device)
    wanted = reference.plan_tree(*_batch("cpu"), block_size=_BLOCK_SIZE)
    return [getattr(plan, f) for f in _PLAN_FIELDS], [getattr(wanted, f) for f in _PLAN_FIELDS]


def _check_write_kv(device: str) -> tuple[Results, Results]:
    from treeattn import reference

    rows = [_random(seed, "cpu", 3, _NUM_KV_HEADS, _HEAD_DIM) for seed in (4, 5)]
    slots = torch.tensor([7, -1, 2], dtype=torch.int64)
    seen, wanted = _pools(device), _pools("cpu")
    ops.write_kv(rows[0].to(device), rows[1].to(device), seen[0], seen[1], slots.to(device))
    reference.write_kv(rows[0], rows[1], wanted[0], wanted[1], slots)
    return seen, wanted


def _check_tree_attention(device: str) -> tuple[Results, Results]:
    from treeattn import reference

    q = _random(6, "cpu", 6, _NUM_QO_HEADS, _HEAD_DIM)
    (k, v), (k_cpu, v_cpu) = _pools(device), _pools("cpu")
    seen = ops.tree_attention(q.to(device), k, v, _plan(device), return_lse=True)
    return list(seen), list(reference.tree_attention(q, k_cpu, v_cpu, _plan("cpu")))


def _accept(device: str) -> ops.AcceptedPath:
    """The target agrees with nodes 1 and 3 of the first tree and with no draft of the second."""
    tokens = torch.tensor([9, 1, 2, 3, 9, 5], dtype=torch.int64, device=device)
    logits = _random(3, "cpu", 6, _VOCAB)
    logits[0, 1] = logits[1, 3] = logits[3, 8] = logits[4, 7] = 9.0
    return ops.accept_path(logits.to(device), tokens, _plan(device), rule="greedy")


def _check_accept_path(device: str) -> tuple[Results, Results]:
    accepted = _accept(device)
    seen = [accepted.path, accepted.num_accepted, accepted.next_tokens, accepted.emitted]
    wanted = [[[0, 1, 3], [0, -1, -1]], [2, 0], [8, 7], [[1, 3, 8], [7, -1, -1]]]
    return seen, [torch.tensor(values) for values in wanted]


def _check_remap_kv(device: str) -> tuple[Results, Results]:
    """Compares what each logical slot holds, not where its block lies."""
    plan, before = _plan(device), _pools("cpu")
    pools = [pool.to(device, copy=True) for pool in before]
    old_slots = plan.slot_mapping.cpu()
    ops.remap_kv(pools[:1], pools[1:], plan, _accept(device))
    table = plan.block_table.cpu().long()
    seen = [pool.cpu()[table[0]].flatten(0, 1)[3:6] for pool in pools]
    wanted = [pool.flatten(0, 1)[old_slots[[0, 1, 3]]] for pool in before]
    return seen, wanted


def _check_merge_states(device: str) -> tuple[Results, Results]:
    from treeattn import reference

    states = [
        _random(seed, "cpu", 3, _NUM_QO_HEADS, *tail)
        for seed, tail in enumerate([(_HEAD_DIM,), (), (_HEAD_DIM,), ()])
    ]
    seen = ops.merge_states(*(state.to(device) for state in states))
    return list(seen), list(reference.merge_states(*states))


_RUN: dict[str, Callable[[str], tuple[Results, Results]]] = {
    "plan_tree": _check_plan_tree,
    "write_kv": _check_write_kv,
    "tree_attention": _check_tree_attention,
    "accept_path": _check_accept_path,
    "remap_kv": _check_remap_kv,
    "merge_states": _check_merge_states,
}
