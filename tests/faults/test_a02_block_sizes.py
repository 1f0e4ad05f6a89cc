# SPDX-License-Identifier: Apache-2.0
"""A02: blocks of several rows under several branches: attention and the committed KV are the same
for every block size, although the last block of the context starts partly full."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support.accepted import accepted_path
from support.logical import Request, attend, lay_out, random_request, same_bits

MACHINES = "host"

PARENTS = [-1, 0, 0, 1, 1, 2, 2, 6, 6]
CONTEXT_LEN = 7
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
LEAVES = {3: [0, 1, 3], 5: [0, 2, 5], 8: [0, 2, 6, 8]}


def committed(request: Request, block_size: int, path: list[int]) -> list[torch.Tensor]:
    """K and V of the context, the root and the path, read back through the table after remap."""
    x = lay_out([request], block_size, seed=block_size)
    accepted = accepted_path([path], x.plan.max_depth + 1)
    treeattn.remap_kv([x.k_cache], [x.v_cache], x.plan, accepted)
    slots = torch.arange(CONTEXT_LEN + len(path))
    blocks = x.plan.block_table[0, slots // block_size].long()
    return [pool[blocks, slots % block_size] for pool in (x.k_cache, x.v_cache)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention(dtype: torch.dtype, cpu_isa: str) -> None:
    request = random_request(0, PARENTS, CONTEXT_LEN, dtype=dtype)
    expected = attend(lay_out([request], 1))
    assert expected[0].isfinite().all()
    for block_size in BLOCK_SIZES:
        for seed in range(3):
            actual = attend(lay_out([request], block_size, seed=seed))
            assert same_bits(actual[0], expected[0]) and same_bits(actual[1], expected[1])


@pytest.mark.parametrize("path", LEAVES.values(), ids=lambda path: f"leaf_{path[-1]}")
def test_committed_rows(path: list[int]) -> None:
    request = random_request(1, PARENTS, CONTEXT_LEN)
    rows = torch.tensor([*range(CONTEXT_LEN), *(CONTEXT_LEN + node for node in path)])
    for block_size in BLOCK_SIZES:
        k, v = committed(request, block_size, path)
        assert torch.equal(k, request.k[rows]) and torch.equal(v, request.v[rows]), block_size


def test_the_page_of_the_fault() -> None:
    """Blocks of 4 at places 9, 2, 17, 4: the last block of the context is three quarters full."""
    plan = treeattn.plan_tree(
        torch.tensor(PARENTS),
        torch.tensor([0, 9]),
        torch.tensor([CONTEXT_LEN]),
        torch.tensor([[9, 2, 17, 4]]),
        block_size=4,
        num_qo_heads=4,
        num_kv_heads=2,
    )
    assert plan.slot_mapping.tolist() == [2 * 4 + 3, *range(68, 72), *range(16, 20)]
    request = random_request(2, PARENTS, CONTEXT_LEN)
    pools = [torch.full((18, 4, 2, 64), torch.nan) for _ in "kv"]
    slots = torch.tensor([*range(36, 40), 8, 9, 10, *plan.slot_mapping.tolist()])
    for pool, rows in zip(pools, (request.k, request.v), strict=True):
        pool[slots // 4, slots % 4] = rows
    out = treeattn.tree_attention(request.q, *pools, plan)
    assert isinstance(out, torch.Tensor)
    assert same_bits(out, attend(lay_out([request], 1))[0])
    moved = treeattn.remap_kv(
        [pools[0]], [pools[1]], plan, accepted_path([[0, 2, 6, 8]], plan.max_depth + 1)
    )
    assert moved.tolist() == [3] and plan.block_table.tolist() == [[9, 2, 17, 4]]
    for pool, rows in zip(pools, (request.k, request.v), strict=True):
        assert torch.equal(pool.view(-1, 2, 64)[[11, 68, 69, 70]], rows[[7, 9, 13, 15]])
