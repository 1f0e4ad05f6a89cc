# SPDX-License-Identifier: Apache-2.0
"""The ops as citizens of torch: opcheck, and fullgraph compilation with reads before and after."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support.attention import AttentionCase, AttentionProblem
from torch import Tensor

CASE = AttentionCase("", trees=((-1, 0, 0, 1, 2, 2), (-1, 0)), context_lens=(9, 4), block_size=4)
OPCHECK = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
VOCAB = 50


def opcheck(name: str, *arguments: object) -> None:
    op = getattr(torch.ops.treeattn, name).default
    results = torch.library.opcheck(op, arguments, test_utils=OPCHECK)
    assert set(results.values()) == {"SUCCESS"}, results


def problem(device: str) -> AttentionProblem:
    return CASE.make(device, poison=0.0)


def accepted_path(x: AttentionProblem) -> tuple[Tensor, Tensor, treeattn.AcceptedPath]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(x.plan.num_nodes, VOCAB, generator=generator)
    tokens = torch.arange(x.plan.num_nodes)
    for node, child in ((0, 2), (2, 5), (6, 7)):  # rows of the batch: the argmax is a child
        logits[node, child] = 9.0
    return logits, tokens, treeattn.accept_path(logits, tokens, x.plan)


def test_opcheck_plan_tree(device: str) -> None:
    plan = problem(device).plan
    written = [torch.empty_like(t) for t in (plan.depths, plan.positions, plan.slot_mapping)]
    written += [torch.empty_like(t) for t in (plan.ancestors, plan.order, plan.status)]
    inputs = plan.parents, plan.node_indptr, plan.context_lens, plan.block_table
    opcheck("plan_tree", *inputs, None, 4, None, *written, None)
    opcheck("plan_tree", *inputs, plan.slot_mapping, 4, plan.max_depth, *written, None)


def test_opcheck_write_kv(device: str) -> None:
    x = problem(device)
    rows = torch.randn(x.plan.num_nodes, 2, 64)
    opcheck("write_kv", rows, rows, x.k_cache, x.v_cache, x.plan.slot_mapping, None, None)
    kv = torch.zeros(12, 4, 2, 128)  # K and V as views of one pool
    opcheck("write_kv", rows, rows, *kv.split(64, -1), x.plan.slot_mapping, None, None)


@pytest.mark.parametrize("with_options", [False, True], ids=["plain", "options"])
def test_opcheck_tree_attention(with_options: bool, device: str) -> None:
    x = problem(device)
    p = x.plan
    plan = p.node_indptr, p.context_lens, p.block_table, p.depths, p.slot_mapping, p.ancestors
    per_head = torch.rand(4)
    options = (7, 2.0, per_head, per_head) if with_options else (None, 0.0, None, None)
    lse = torch.empty(x.q.shape[:2]) if with_options else None
    opcheck(
        "tree_attention",
        *(x.q, x.k_cache, x.v_cache, *plan, p.order, p.status, 4, 0.125),
        *(*options, None, None, torch.empty_like(x.q), lse, None, None, 1, False),
    )


def test_opcheck_accept_path(device: str) -> None:
    x = problem(device)
    logits, tokens, out = accepted_path(x)
    p = x.plan
    plan = p.parents, p.node_indptr, p.context_lens, p.depths, p.status, p.max_depth
    written = out.path, out.num_accepted, out.next_tokens, out.status, out.emitted
    target, drafts = [None] * 5, [None] * 4
    rest = False, None, None, 0.3, 0.09
    opcheck("accept_path", logits, tokens, *plan, 0, *target, *drafts, *rest, *written, *[None] * 4)
    half, seeds = torch.full((2,), 0.5), torch.tensor([1, 2])
    sampled = half, None, half, half, seeds
    law = torch.randn(p.num_nodes, 7).softmax(1)
    drafts = [law, None, torch.zeros(p.num_nodes).int(), torch.arange(7) * 3]
    more = out.path.float(), out.path.float(), torch.zeros(2, 4, 3, dtype=torch.int64), None
    opcheck("accept_path", logits, tokens, *plan, 2, *sampled, *drafts, *rest, *written, *more)


def test_opcheck_remap_kv(device: str) -> None:
    x = problem(device)
    _, _, out = accepted_path(x)
    p = x.plan
    rest = p.slot_mapping, out.path, out.num_accepted, out.status, 4, torch.empty_like(out.status)
    plan = p.node_indptr, p.context_lens, p.block_table
    pools = [x.k_cache, x.k_cache.clone()], [x.v_cache, x.v_cache.clone()]
    opcheck("remap_kv", *pools, [], [], *plan, *rest, None, None)
    stacked = [torch.stack(pools[0])], [torch.stack(pools[1])]
    opcheck("remap_kv", *stacked, [], [], *plan, *rest, None, None)


def test_opcheck_merge_states(device: str) -> None:
    out, lse = torch.randn(5, 2, 8), torch.randn(5, 2)
    opcheck("merge_states", out, lse, out.clone(), lse.clone(), out.clone(), lse.clone())


@pytest.mark.parametrize("views", [False, True], ids=["separate", "one-pool"])
def test_compiled_attention_and_remap_equal_eager(views: bool, device: str) -> None:
    """Reads of the pools before and after each mutation see what they see in eager mode."""
    x = problem(device)
    _, _, accepted = accepted_path(x)
    assert accepted.num_accepted.tolist() == [2, 1]
    rows = torch.randn(x.plan.num_nodes, 2, 64)

    def pools() -> tuple[Tensor, Tensor]:
        if views:
            return torch.cat([x.k_cache, x.v_cache], -1).split(64, -1)
        return x.k_cache.clone(), x.v_cache.clone()

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, ...]:
        before = k_cache * 1.0, v_cache * 1.0
        treeattn.write_kv(rows, rows + 1, k_cache, v_cache, x.plan.slot_mapping)
        written = k_cache * 1.0, v_cache * 1.0
        out = treeattn.tree_attention(q, k_cache, v_cache, x.plan)
        moved = treeattn.remap_kv([k_cache], [v_cache], x.plan, accepted)
        again = treeattn.tree_attention(q, k_cache, v_cache, x.plan)
        return *before, *written, out, moved, again, k_cache * 1.0, v_cache * 1.0

    table = x.plan.block_table.clone()
    expected = step(x.q, *pools())
    repointed = x.plan.block_table.clone()
    x.plan.block_table.copy_(table)
    actual = torch.compile(step, fullgraph=True, dynamic=False)(x.q, *pools())
    assert torch.equal(x.plan.block_table, repointed)
    for got, wanted in zip(actual, expected, strict=True):
        assert torch.equal(got, wanted)
