# SPDX-License-Identifier: Apache-2.0
"""Ours and the peers compute the same thing, and the judge notices when one does not."""

from __future__ import annotations

import pytest
import torch
import treeattn

from bench import acceptance, memory
from bench.acceptance import AcceptCase, Sampling
from bench.check import Judge, WrongResultError
from bench.items import accept, attention_row, remap
from bench.items.attention import cold_pools
from bench.items.remap import RemapCase
from bench.models import Model
from bench.peers import accept as accept_peers
from bench.peers import attention as attention_peers
from bench.peers import remap as remap_peers
from bench.problem import Case, build

TOY = Model("toy", num_qo_heads=4, num_kv_heads=2, head_dim=16, num_layers=3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("ctx", [0, 37])
def test_every_dense_peer_agrees_with_fp64(ctx: int, dtype: str) -> None:
    problem = build(Case(TOY, ctx, "eagle-16", dtype, block_size=8))
    judge = Judge(problem)
    peers, skipped = attention_peers.make(problem, attention_peers.DENSE)
    assert set(peers) == set(attention_peers.DENSE) and not skipped
    for name, peer in peers.items():
        judge.check(name, peer.unpack(peer.run()))
    out = treeattn.tree_attention(problem.q, *problem.pools[0], problem.plan)
    assert isinstance(out, torch.Tensor)
    judge.check("tree_attention", out)


def test_the_judge_is_the_reference() -> None:
    problem = build(Case(TOY, 21, "eagle-16", "fp32"))
    expected, _ = treeattn.reference.tree_attention(problem.q, *problem.pools[0], problem.plan)
    assert Judge(problem).error(expected) < 1e-6


def test_the_judge_sees_one_wrong_row_and_nan() -> None:
    problem = build(Case(TOY, 9, "star-5", "fp32"))
    peers, _ = attention_peers.make(problem, ["sdpa_gqa"])
    out = peers["sdpa_gqa"].unpack(peers["sdpa_gqa"].run())
    judge = Judge(problem)
    for wrong in (1e-3, float("nan")):
        broken = out.clone()
        broken[3, 2, 5] += wrong
        with pytest.raises(WrongResultError, match="sdpa_gqa"):
            judge.check("sdpa_gqa", broken)


def test_gathered_kv_is_the_logical_order() -> None:
    problem = build(Case(TOY, 9, "chain-5", "fp32", block_size=4, pools=2))
    gather = attention_peers.Gather(problem)
    for pool, (k_pool, v_pool) in enumerate(problem.pools):
        k, v = gather(pool)
        for slot in range(problem.num_keys):
            block = int(problem.plan.block_table[0, slot // 4])
            assert torch.equal(k[0, :, slot], k_pool[block, slot % 4])
            assert torch.equal(v[0, :, slot], v_pool[block, slot % 4])


def test_peers_rotate_over_cold_caches() -> None:
    problem = build(Case(TOY, 9, "chain-5", "fp32", pools=2))
    peers, _ = attention_peers.make(problem, ["sdpa_packed"])
    first, second, third = (peers["sdpa_packed"].run() for _ in range(3))
    assert torch.equal(first, third) and not torch.equal(first, second)
    ours = attention_row._ours(problem)
    first, second, third = (ours().clone() for _ in range(3))
    assert torch.equal(first, third) and not torch.equal(first, second)


def test_cold_pools_exceed_the_cache() -> None:
    case = Case(TOY, 1000, "chain-24", "fp32")
    per_pool = 2 * 1024 * 2 * 16 * 4
    pools = cold_pools(case, 1 << 20)
    assert (pools - 1) * per_pool <= 4 << 20 < pools * per_pool


def test_a_huge_score_matrix_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_peers, "MAX_SCORES_BYTES", 100)
    problem = build(Case(TOY, 9, "chain-5", "fp32"))
    peers, skipped = attention_peers.make(problem, ["eager_packed"])
    assert not peers and "score matrix" in skipped["eager_packed"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling("target"),
        Sampling("target", top_k=5),
        Sampling("target", top_p=0.8),
        Sampling("target", top_k=7, top_p=0.5),
    ],
    ids=lambda s: s.label,
)
@pytest.mark.parametrize(("tree", "accepted"), [("chain-5", 4), ("eagle-16", 2), ("star-4", 0)])
def test_accept_emits_the_known_path(
    tree: str, accepted: int, sampling: Sampling, dtype: str
) -> None:
    case = AcceptCase(200, tree, accepted, dtype, sampling, batch=2)
    problem = acceptance.build(case)
    assert len(problem.emitted) == accepted + 1
    expected = [problem.emitted] * 2
    assert accept.ours_emitted(problem) == expected
    peers = accept_peers.make(problem)
    assert peers and all(peer() == expected for peer in peers.values())


@pytest.mark.parametrize("sampling", [Sampling("target", top_k=5), Sampling("target", top_p=0.5)])
def test_the_eager_chain_draws_from_the_filtered_law(sampling: Sampling) -> None:
    problem = acceptance.build(AcceptCase(50, "star-40", 0, "fp32", sampling))
    problem.uniforms[:, 1] = torch.arange(40) / 40 + 0.01
    laws = [acceptance.law(row, sampling) for row in problem.logits]
    expected = [
        int((law.cumsum(0) <= float(u)).sum())
        for law, u in zip(laws, problem.uniforms[:, 1], strict=True)
    ]
    assert accept_peers._draw(problem).tolist() == expected
    unfiltered = [acceptance.law(row, Sampling("target")) for row in problem.logits]
    assert all(law.gt(0).sum() < 30 for law in laws) and all(law.gt(0).all() for law in unfiltered)


def test_accept_peers_follow_the_logits() -> None:
    problem = acceptance.build(AcceptCase(200, "chain-5", 4, "fp32"))
    problem.logits[2] = 0.0
    problem.logits[2, 17] = 9.0
    emitted = [*problem.emitted[:2], 17]
    assert all(peer() == [emitted] for peer in accept_peers.make(problem).values())


@pytest.mark.parametrize("path", ["random", "first_child", "whole_block", "worst"])
def test_remap_brings_the_path_into_place(path: str) -> None:
    x = remap._Problem(RemapCase(TOY, 2, 4, path))
    moved = remap._check_ours(x)
    assert moved == {"first_child": 0, "whole_block": 0, "worst": 8}.get(path, moved)
    moving = x.sources != x.targets
    assert moving.any() != (path == "first_child")
    x = remap._Problem(RemapCase(TOY, 2, 4, path))
    for name, peer in remap_peers.make(x.flat(), x.sources[moving], x.targets[moving]).items():
        remap._check(name, x, peer, x.targets)


def test_the_remap_check_sees_a_row_left_behind() -> None:
    x = remap._Problem(RemapCase(TOY, 1, 4))
    with pytest.raises(WrongResultError, match="idle"):
        remap._check("idle", x, lambda: None, x.targets)


def test_peak_memory_of_a_call() -> None:
    in_use = memory.malloc_in_use()
    if in_use is None:
        pytest.skip("this C library has no mallinfo2")
    a = torch.randn(64, 1 << 15)
    size = a.nbytes

    def run() -> None:
        for _ in range(5):
            a.cos().sum()  # 8 MiB that are gone when it returns

    assert size <= memory.peak_bytes(run, in_use) < 1.5 * size


def test_plan_bytes_leave_the_callers_tensors_out() -> None:
    problem = build(Case(TOY, 40, "chain-33", "fp32"))
    plan = problem.plan
    inputs = [plan.parents, plan.node_indptr, plan.context_lens, plan.block_table]
    # depths, positions, order: int32; slots: int64; two words of ancestors; one status
    assert memory.plan_bytes(plan, inputs) == 33 * (3 * 4 + 8 + 2 * 4) + 4
