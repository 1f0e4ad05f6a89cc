# SPDX-License-Identifier: Apache-2.0
"""A23: any number of query heads per KV head; what does not divide is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import treeattn
from support.attention import AttentionCase, assert_rows_close
from treeattn import reference

MACHINES = "host"

RATIOS = [(28, 4), (9, 1), (24, 4), (40, 8), (64, 4), (15, 5), (8, 8), (71, 1), (1, 1), (130, 1)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", RATIOS, ids=lambda heads: f"{heads[0]}:{heads[1]}")
def test_ratio(heads: tuple[int, int], dtype: torch.dtype, cpu_isa: str) -> None:
    case = AttentionCase(
        "", trees=(7,), num_qo_heads=heads[0], num_kv_heads=heads[1], head_dim=64, dtype=dtype
    )
    x = case.make("cpu")
    out = torch.full_like(x.q, torch.nan)
    _, lse = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan, out=out, return_lse=True)
    expected, expected_lse = reference.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    assert_rows_close(out, expected, TOLERANCE[dtype])
    assert_rows_close(lse, expected_lse, 1e-5)


@pytest.mark.parametrize("heads", [(13, 2), (2, 13), (0, 1), (4, 0), (-4, 2)])
def test_the_plan_refuses_what_does_not_divide(heads: tuple[int, int]) -> None:
    message = (
        f"num_qo_heads must be a positive multiple of num_kv_heads, got {heads[0]} and {heads[1]}"
    )
    with pytest.raises(ValueError, match=message):
        AttentionCase("", num_qo_heads=heads[0], num_kv_heads=heads[1]).make("cpu")


def test_attention_refuses_what_does_not_divide() -> None:
    """A plan may be made by hand: the op looks at the tensors."""
    x = AttentionCase("", num_qo_heads=4, num_kv_heads=2).make("cpu")
    plan = replace(x.plan, num_qo_heads=13)
    q, out = torch.randn(7, 13, 64), torch.full((7, 13, 64), 5.0)
    with pytest.raises(ValueError, match="multiple of k_cache's num_kv_heads, got 13 and 2"):
        treeattn.tree_attention(q, x.k_cache, x.v_cache, plan, out=out)
    assert (out == 5.0).all()
