# SPDX-License-Identifier: Apache-2.0
"""A09: what never-written slots and spare table entries hold never reaches the output."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support.attention import AttentionProblem, live_slots
from support.logical import attend, random_request, same_bits
from treeattn.plan import TreePlan

MACHINES = "host"

BLOCK_SIZE = 16
PARENTS = [-1, 0, 0, 1, 2]
CONTEXTS = (0, 13, 77, 128)  # 13: 18 rows of two blocks are live; 77 and 128 fill whole tiles first
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BLOCKS = [5, 2, 7, 11, 0, 9, 3, 8, 6]
NUM_BLOCKS = 12


def plan_of(context_len: int, spare: list[int]) -> TreePlan:
    needed = -(-(context_len + len(PARENTS)) // BLOCK_SIZE)
    return treeattn.plan_tree(
        torch.tensor(PARENTS),
        torch.tensor([0, len(PARENTS)]),
        torch.tensor([context_len]),
        torch.tensor([BLOCKS[:needed] + spare], dtype=torch.int32),
        block_size=BLOCK_SIZE,
        num_qo_heads=4,
        num_kv_heads=2,
    )


def problem(
    context_len: int, dtype: torch.dtype, fill: torch.Tensor, spare: list[int]
) -> AttentionProblem:
    """Pools of fill's dtype, all `fill` but for the live rows."""
    request = random_request(context_len, PARENTS, context_len, dtype=dtype)
    plan = plan_of(context_len, spare)
    slots = live_slots(plan, 0)
    pools = [fill.expand(NUM_BLOCKS, BLOCK_SIZE, 2, 64).clone() for _ in "kv"]
    treeattn.write_kv(request.k, request.v, *pools, slots)
    return AttentionProblem(request.q, *pools, plan)


def check(dtype: torch.dtype, fills: list[torch.Tensor]) -> None:
    for context_len in CONTEXTS:
        clean = attend(problem(context_len, dtype, torch.zeros_like(fills[0]), [0, 0]))
        assert clean[0].isfinite().all() and clean[1].isfinite().all()
        for fill in fills:
            for spare in ([], [-1, -1], [2**30, 2**31 - 1], [NUM_BLOCKS, -(2**31)]):
                actual = attend(problem(context_len, dtype, fill, spare))
                assert same_bits(actual[0], clean[0]), (context_len, fill, spare)
                assert same_bits(actual[1], clean[1]), (context_len, fill, spare)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pools_of_the_query_dtype(dtype: torch.dtype, cpu_isa: str) -> None:
    values = (torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max)
    check(dtype, [torch.tensor(value, dtype=dtype) for value in values])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fp8_pools(dtype: torch.dtype, cpu_isa: str) -> None:
    bits = torch.tensor([0x7F, 0xFF, 0x7E, 0xFE], dtype=torch.uint8)  # NaN, -NaN, 448, -448
    check(dtype, list(bits.view(torch.float8_e4m3fn)))
