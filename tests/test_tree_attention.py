# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import treeattn
from support.attention import (
    AttentionCase,
    AttentionProblem,
    assert_rows_close,
    live_slots,
    rows_bitwise_equal,
)
from treeattn import reference

MACHINES = "host"

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
NAN = float("nan")

CASES = [
    AttentionCase("one-node", trees=(1,)),
    AttentionCase("no-context", context_lens=(0,)),
    AttentionCase("chain", trees=(70,), branching=0.0),
    AttentionCase("star", trees=(40,), branching=1.0, context_lens=(64,)),
    AttentionCase("big-tree", trees=(300,), context_lens=(100,), branching=0.3),
    AttentionCase("tile-edges", trees=(9, 9, 9, 9), context_lens=(63, 64, 65, 128)),
    AttentionCase("ragged", trees=(5, 0, 17, 1), context_lens=(3, 9, 200, 0)),
    AttentionCase("block-1", block_size=1),
    AttentionCase("block-3", block_size=3, trees=(20, 3), context_lens=(50, 7)),
    AttentionCase("block-128", block_size=128, context_lens=(300,)),
    AttentionCase("head-dim-32", head_dim=32),
    AttentionCase("head-dim-40", head_dim=40, dtype=torch.bfloat16),
    AttentionCase("head-dim-72", head_dim=72),
    AttentionCase("head-dim-248", head_dim=248, dtype=torch.float16),
    AttentionCase("head-dim-256", head_dim=256),
    AttentionCase("smollm2", num_qo_heads=9, num_kv_heads=3, trees=(16,), context_lens=(256,)),
    AttentionCase("bf16", dtype=torch.bfloat16, trees=(33, 8), context_lens=(130, 5)),
    AttentionCase("fp16", dtype=torch.float16, trees=(33, 8), context_lens=(130, 5)),
    AttentionCase("window", trees=(60,), branching=0.2, options={"window": 7}),
    AttentionCase("window-1", options={"window": 1}),
    AttentionCase("window-wide", context_lens=(200,), options={"window": 130}),
    AttentionCase("soft-cap", options={"logits_soft_cap": 3.0}),
    AttentionCase("scale", options={"sm_scale": 0.5}),
    AttentionCase("sinks", options={"sinks": torch.tensor([0.0, 5.0, -5.0, 1.0])}),
    AttentionCase("alibi", options={"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])}),
    AttentionCase(
        "everything",
        trees=(50, 9),
        context_lens=(150, 70),
        options={
            "window": 90,
            "logits_soft_cap": 4.0,
            "sinks": torch.tensor([0.0, 1.0, -1.0, 2.0]),
            "alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]),
        },
    ),
]

# Tensor cores have kernels of their own: every case in 16 bits too.
CASES += [
    replace(case, name=f"{case.name}-{name}", dtype=dtype)
    for case in CASES
    if case.dtype == torch.float32
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tree_attention(case: AttentionCase, device: str, cpu_isa: str) -> None:
    x = case.make(device)
    out = torch.full_like(x.q, NAN)
    result, lse = treeattn.tree_attention(
        x.q, x.k_cache, x.v_cache, x.plan, out=out, return_lse=True, **case.options
    )
    assert result is out
    expected, expected_lse = reference.tree_attention(
        x.q, x.k_cache, x.v_cache, x.plan, **case.options
    )
    assert_rows_close(out, expected, TOLERANCE[case.dtype])
    assert_rows_close(lse, expected_lse, 1e-5)


def path_rows(x: AttentionProblem, node: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One node as a one-row decode whose context is the tree's context and the node's ancestors."""
    path = [node]
    while int(x.plan.parents[path[0]]) >= 0:
        path.insert(0, int(x.plan.parents[path[0]]))
    context_len = int(x.plan.context_lens[0])
    slots = torch.cat([live_slots(x.plan, 0)[:context_len], x.plan.slot_mapping[path].cpu()])
    pools = []
    for cache in (x.k_cache, x.v_cache):
        pool = torch.full((len(slots), 1, *cache.shape[2:]), NAN, dtype=cache.dtype)
        pool[:, 0] = cache[slots // x.plan.block_size, slots % x.plan.block_size]
        pools.append(pool.to(cache.device))
    plan = treeattn.plan_tree(
        torch.tensor([-1]),
        torch.tensor([0, 1]),
        torch.tensor([len(slots) - 1]),
        torch.arange(len(slots))[None],
        block_size=1,
        num_qo_heads=x.plan.num_qo_heads,
        num_kv_heads=x.plan.num_kv_heads,
        batch_invariant=True,
    )
    out, lse = treeattn.tree_attention(x.q[node : node + 1], *pools, plan, return_lse=True)
    return out, lse


@pytest.mark.parametrize("branching", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_row_equals_decoding_its_path_bitwise(
    branching: float, dtype: torch.dtype, machine: str, device: str, cpu_isa: str
) -> None:
    """Any node, of any tree: the chain's rows are what the contract asks for."""
    if machine != "cpu" and dtype != torch.float32 and branching > 0:
        pytest.skip("tensor cores add up a tree's keys in the order of its row tile")
    case = AttentionCase("", trees=(150,), context_lens=(90,), branching=branching, dtype=dtype)
    x = case.with_(batch_invariant=True).make(device)
    out, lse = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan, return_lse=True)
    for node in range(0, 150, 13):
        alone, alone_lse = path_rows(x, node)
        assert rows_bitwise_equal(out[node], alone[0]), node
        assert rows_bitwise_equal(lse[node], alone_lse[0]), node


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_mates_and_block_places_never_change_a_row(dtype: torch.dtype, device: str) -> None:
    case = AttentionCase("", trees=(20,), context_lens=(77,), dtype=dtype, batch_invariant=True)
    alone = case.make(device)
    expected = treeattn.tree_attention(alone.q, alone.k_cache, alone.v_cache, alone.plan)
    mates = case.with_(trees=(3, 20, 60), context_lens=(200, 77, 1), seed=5).make(device)
    size = alone.plan.block_size
    plan = mates.plan
    # Give request 1 the same tree, keys, values and queries as `alone`.
    begin, end = int(plan.node_indptr[1]), int(plan.node_indptr[2])
    parents = plan.parents.clone()
    parents[begin:end] = alone.plan.parents
    plan = treeattn.plan_tree(
        parents,
        plan.node_indptr,
        plan.context_lens,
        plan.block_table,
        block_size=size,
        num_qo_heads=4,
        num_kv_heads=2,
        batch_invariant=True,
    )
    mates.q[begin:end] = alone.q
    source, target = live_slots(alone.plan, 0), live_slots(plan, 1)
    for a, b in ((alone.k_cache, mates.k_cache), (alone.v_cache, mates.v_cache)):
        b[target // size, target % size] = a[source // size, source % size]
    out = treeattn.tree_attention(mates.q, mates.k_cache, mates.v_cache, plan)
    assert rows_bitwise_equal(out[begin:end], expected)
    assert rows_bitwise_equal(
        out, treeattn.tree_attention(mates.q, mates.k_cache, mates.v_cache, plan)
    )


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("poison", [NAN, float("inf")])
def test_unseen_branch_has_no_influence(
    poison: float, dtype: torch.dtype, head_dim: int, device: str, cpu_isa: str
) -> None:
    """A NaN in one branch's KV reaches that branch and nobody else."""
    case = AttentionCase(
        "", trees=((-1, 0, 0, 1, 2),), context_lens=(70,), dtype=dtype, head_dim=head_dim
    )
    x = case.make(device)
    clean = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    slot = int(x.plan.slot_mapping[2])
    x.k_cache[slot // 16, slot % 16] = poison
    x.v_cache[slot // 16, slot % 16] = poison
    out = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    for node in (0, 1, 3):
        assert rows_bitwise_equal(out[node], clean[node])
    assert out[2].isnan().all() and out[4].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_window_hides_non_finite_values(dtype: torch.dtype, device: str) -> None:
    case = AttentionCase("", trees=(9,), context_lens=(100,), dtype=dtype)
    x = case.make(device)
    clean = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan, window=20)
    slots = live_slots(x.plan, 0)[:81]  # the root at position 100 sees 81 and later
    x.v_cache[slots // 16, slots % 16] = NAN
    out = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan, window=20)
    assert rows_bitwise_equal(out, clean)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [64, 112, 256])
@pytest.mark.parametrize("scale", [0.25, torch.tensor([0.5, 2.0])], ids=["scalar", "per-head"])
def test_fp8_pools(
    scale: float | torch.Tensor, head_dim: int, dtype: torch.dtype, device: str
) -> None:
    case = AttentionCase("", trees=(12, 30), context_lens=(40, 130), head_dim=head_dim, dtype=dtype)
    x = case.make(device, poison=0.0)
    pools = []
    for cache in (x.k_cache, x.v_cache):
        pool = torch.full(cache.shape, NAN).to(torch.float8_e4m3fn)
        slots = torch.cat([live_slots(x.plan, b) for b in (0, 1)])
        rows = cache[slots // 16, slots % 16]
        treeattn.write_kv(rows, rows, pool, pool.clone(), slots, k_scale=scale)
        pools.append(pool)
    out, lse = treeattn.tree_attention(
        x.q, *pools, x.plan, k_scale=scale, v_scale=scale, return_lse=True
    )
    expected, expected_lse = reference.tree_attention(
        x.q, *pools, x.plan, k_scale=scale, v_scale=scale
    )
    assert_rows_close(out, expected, TOLERANCE[dtype])
    assert_rows_close(lse, expected_lse, 1e-5)


def test_capacity_rows_are_zero(device: str) -> None:
    """Rows past node_indptr[B] belong to nobody."""
    parents = torch.tensor([-1, 0, 7, 7], dtype=torch.int32, device=device)
    plan = treeattn.plan_tree(
        parents,
        torch.tensor([0, 2]),
        torch.tensor([3]),
        torch.tensor([[1]]),
        block_size=16,
        num_qo_heads=2,
        num_kv_heads=1,
        max_depth=1,
    )
    pool = torch.randn(2, 16, 1, 32, device=device)
    out = torch.full((4, 2, 32), NAN, device=device)
    _, lse = treeattn.tree_attention(
        torch.randn(4, 2, 32), pool, pool, plan, out=out, return_lse=True
    )
    assert out[:2].isfinite().all() and (out[2:] == 0).all()
    assert (lse[2:] == -math.inf).all()


def test_strided_inputs_equal_packed_copies(device: str) -> None:
    case = AttentionCase("", trees=(30,), context_lens=(50,))
    x = case.make(device)
    expected = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    fused_qkv = torch.randn(30, 4 + 2 * 2, 64)
    fused_qkv[:, :4] = x.q
    interleaved = torch.stack([x.k_cache, x.v_cache], dim=1)  # FlashInfer's NHD pool
    by_head = torch.cat([x.k_cache, x.v_cache], dim=-1).transpose(1, 2).contiguous()  # vLLM's HND
    pools = [
        (interleaved[:, 0], interleaved[:, 1]),
        tuple(by_head.transpose(1, 2).split(64, dim=-1)),
    ]
    for k_cache, v_cache in pools:
        out = torch.zeros(30, 8, 64)[:, ::2]
        treeattn.tree_attention(fused_qkv[:, :4], k_cache, v_cache, x.plan, out=out)
        assert torch.equal(out, expected)


def test_empty_batch(device: str) -> None:
    plan = treeattn.plan_tree(
        torch.empty(0, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.empty(0, dtype=torch.int32),
        torch.empty(0, 0, dtype=torch.int32),
        block_size=16,
        num_qo_heads=4,
        num_kv_heads=2,
    )
    pool = torch.zeros(1, 16, 2, 64)
    assert treeattn.tree_attention(torch.empty(0, 4, 64), pool, pool, plan).shape == (0, 4, 64)


def test_exp_error_bound(device: str, cpu_isa: str) -> None:
    """One key per score gap: out = 1 / (1 + e^gap) recovers the kernel's exp, which is 2^x with
    x = -gap log2(e) rounded to fp32: a relative error of 2 ulp and that of the exponent."""
    gaps = torch.cat([torch.linspace(0, 85, 4000), torch.tensor([0.0, 1e-7, 87.0])])
    plan = treeattn.plan_tree(
        torch.full((len(gaps),), -1),
        torch.arange(len(gaps) + 1),
        torch.ones(len(gaps), dtype=torch.int32),
        torch.arange(2 * len(gaps)).reshape(-1, 2),
        block_size=1,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    k_cache = torch.zeros(2 * len(gaps), 1, 1, 16)
    k_cache[0::2, 0, 0, 0] = -gaps
    v_cache = torch.zeros_like(k_cache)
    v_cache[0::2] = 1.0
    q = torch.zeros(len(gaps), 1, 16)
    q[..., 0] = 1.0
    out = treeattn.tree_attention(q, k_cache, v_cache, plan, sm_scale=1.0)[:, 0, 0]
    weight = torch.exp(-gaps.double())
    relative = (out.double() / (weight / (1 + weight)) - 1).abs()
    exponent_error = gaps * 2**-23  # log2(e) and the product, half an ulp each
    assert (relative < 4 * 2**-23 + exponent_error).all()  # 2 ulp, then a sum and a division


def test_lengths_near_the_limit(device: str) -> None:
    """An expanded pool needs no memory, so a context of almost 2**31 keys can be windowed."""
    most = 2**31 - 1 - 4096
    with pytest.raises(ValueError, match=f"nodes must be at most {most}, got {most}"):
        plan_of_one(most)
    pool = torch.zeros(1, 1, 1, 16).expand(2, 2**20, 1, 16)
    q = torch.randn(1, 1, 16)
    out = treeattn.tree_attention(
        q, pool, torch.ones_like(pool[:1, :1]).expand_as(pool), plan_of_one(most - 1), window=64
    )
    assert torch.equal(out, torch.ones(1, 1, 16))


def plan_of_one(context_len: int) -> treeattn.TreePlan:
    return treeattn.plan_tree(
        torch.tensor([-1]),
        torch.tensor([0, 1]),
        torch.tensor([context_len]),
        torch.zeros(1, 2048, dtype=torch.int32),
        block_size=2**20,
        num_qo_heads=1,
        num_kv_heads=1,
        slot_mapping=torch.tensor([2**20]),  # the first row of block 1
    )
