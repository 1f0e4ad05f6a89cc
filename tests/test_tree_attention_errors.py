# SPDX-License-Identifier: Apache-2.0
"""Bad input to tree_attention: the CPU says what is wrong, a device drops what it cannot read."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import treeattn
from support.attention import AttentionCase, live_slots, rows_bitwise_equal

MACHINES = "host"

BAD_CALLS = [
    ("q must be float32 or bfloat16 or float16", {"q": torch.zeros(7, 4, 64, dtype=torch.int32)}),
    ("q must have shape [num_nodes, num_qo_heads, head_dim]", {"q": torch.zeros(7, 64)}),
    ("contiguous", {"q": torch.zeros(7, 4, 128)[..., ::2]}),
    ("num_nodes = 6", {"q": torch.zeros(6, 4, 64)}),
    ("must be the plan's, 4 and 2, got 3 and 2", {"q": torch.zeros(7, 3, 64)}),
    ("must be the plan's, 4 and 2, got 8 and 2", {"q": torch.zeros(7, 8, 64)}),
    (
        "k_cache's dtype, float32, unless the pool is float8_e4m3fn; got bfloat16",
        {"q": torch.zeros(7, 4, 64, dtype=torch.bfloat16)},
    ),
    ("head_dim = 32", {"q": torch.zeros(7, 4, 32)}),
    ("window must be positive, got 0", {"window": 0}),
    ("logits_soft_cap must be finite and >= 0, got -1", {"logits_soft_cap": -1.0}),
    ("logits_soft_cap must be finite and >= 0, got inf", {"logits_soft_cap": math.inf}),
    ("must be the plan's, 4 and 2, got 0 and 2", {"q": torch.zeros(7, 0, 64)}),
    ("sinks must have shape", {"sinks": torch.zeros(3)}),
    ("alibi_slopes must be float32", {"alibi_slopes": torch.zeros(4, dtype=torch.float64)}),
    ("k_scale is for float8_e4m3fn pools only", {"k_scale": 2.0}),
    ("out must have shape", {"out": torch.zeros(7, 4, 32)}),
    ("out must be float32", {"out": torch.zeros(7, 4, 64, dtype=torch.float16)}),
]


@pytest.mark.parametrize(("message", "change"), BAD_CALLS, ids=[m for m, _ in BAD_CALLS])
def test_errors_name_argument_rule_and_value(message: str, change: dict, device: str) -> None:
    x = AttentionCase("").make(device)
    out = torch.full((7, 4, 64), 5.0)
    arguments = {"q": x.q, "k_cache": x.k_cache, "v_cache": x.v_cache, "plan": x.plan, "out": out}
    with pytest.raises(ValueError) as error:
        treeattn.tree_attention(**(arguments | change))
    assert message in str(error.value) and "tree_attention" in str(error.value)
    assert (out == 5.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pool_too_small_for_the_plan(dtype: torch.dtype, machine: str, device: str) -> None:
    """The CPU refuses; a device that meets a slot outside the pool drops the rows that need it."""
    x = AttentionCase("", trees=(40,), context_lens=(30,), branching=1.0, dtype=dtype).make(device)
    last = int(live_slots(x.plan, 0).max()) // 16
    out = torch.full_like(x.q, 5.0)
    if machine != "cpu":
        needs = torch.tensor(
            [
                [bool(w >> i & 1) for w in row for i in range(32)]
                for row in x.plan.ancestors.tolist()
            ]
        )[:, :40]
        lost = live_slots(x.plan, 0) // 16 == last
        dead = lost[:30].any() | (needs & lost[30:]).any(1)
        clean = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
        _, lse = treeattn.tree_attention(
            x.q, x.k_cache[:last], x.v_cache[:last], x.plan, out=out, return_lse=True
        )
        assert dead.any() and (lse[dead] == -math.inf).all()
        gone = (lse == -math.inf).all(1)
        assert (out[gone] == 0).all() and rows_bitwise_equal(out[~gone], clean[~gone])
        return
    with pytest.raises(ValueError, match=r"must be a (block|slot) of the pool"):
        treeattn.tree_attention(x.q, x.k_cache[:last], x.v_cache[:last], x.plan, out=out)
    assert (out == 5.0).all()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("context_lens", 2**30, r"plan.context_lens\[0\] must fit the \d+ blocks of its table"),
        ("node_indptr", 10**8, r"node_indptr\[0\] must be in \[0, 7\], got 100000000"),
    ],
)
def test_a_plan_changed_by_its_owner_is_no_wild_read(
    field: str, value: int, message: str, machine: str, device: str
) -> None:
    """The plan aliases the caller's lengths and offsets."""
    x = AttentionCase("").make(device)
    getattr(x.plan, field).fill_(value)
    if machine != "cpu":
        for dtype in (torch.float32, torch.bfloat16):
            q, k_cache, v_cache = (t.to(dtype) for t in (x.q, x.k_cache, x.v_cache))
            out, lse = treeattn.tree_attention(q, k_cache, v_cache, x.plan, return_lse=True)
            assert (out == 0).all() and (lse == -math.inf).all()
        return
    with pytest.raises(ValueError, match=message):
        treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_changed_offsets_are_no_wild_read(dtype: torch.dtype, machine: str, device: str) -> None:
    """The plan aliases node_indptr; an order made for other offsets is refused."""
    case = AttentionCase("", trees=(4, 4), context_lens=(20, 30), dtype=dtype)
    x = case.make(device)
    x.plan.node_indptr[1] = 6
    if machine != "cpu":  # what comes out is as wrong as the plan; a sanitizer sees the reads
        treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
        return
    with pytest.raises(ValueError, match=r"plan\.order and plan\.depths of node"):
        treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)


@pytest.mark.parametrize("shape", [(1, 16, 2, 0), (1, 0, 2, 64)])
def test_pools_without_rows_or_columns(shape: tuple[int, ...], device: str) -> None:
    case = AttentionCase("", context_lens=(0,))
    x = case.make(device)
    pool = torch.zeros(shape)
    plan = dataclasses.replace(x.plan, block_size=shape[1])
    with pytest.raises(ValueError, match="must have a positive block_size and head_dim"):
        treeattn.tree_attention(x.q[..., : shape[3]], pool, pool, plan, sm_scale=1.0)
