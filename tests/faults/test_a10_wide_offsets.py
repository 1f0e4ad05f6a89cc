# SPDX-License-Identifier: Apache-2.0
"""A10: blocks whose first element lies at 2^31 and 2^32 are read and written where they are.

The pools are address space without memory behind it: only the touched pages come to exist.
"""

from __future__ import annotations

import sys

import pytest
import torch
import treeattn
from support.acceptance import plan_of
from support.accepted import accepted_path
from support.attention import live_slots
from support.logical import Request, random_request, same_bits
from support.wide import untouched_memory
from torch import Tensor

MACHINES = "host"
BLOCK_SIZE, NUM_HEADS, HEAD_DIM = 16, 8, 256
BLOCK_ELEMENTS = BLOCK_SIZE * NUM_HEADS * HEAD_DIM  # 32768
PARENTS = [-1, 0, 0, 1, 2, 4]
CONTEXT_LEN = 6
PATH = [0, 2, 4, 5]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's mmap")


def untouched_pool(num_blocks: int, dtype: torch.dtype) -> Tensor:
    rows = untouched_memory(num_blocks * BLOCK_ELEMENTS, dtype)
    return rows.view(num_blocks, BLOCK_SIZE, NUM_HEADS, HEAD_DIM)


def step(
    blocks: tuple[int, int], requests: list[Request], pools: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Write, attend, remap; the output and the committed rows of both requests."""
    plan = treeattn.plan_tree(
        torch.tensor(PARENTS * 2),
        torch.tensor([0, len(PARENTS), 2 * len(PARENTS)]),
        torch.tensor([CONTEXT_LEN] * 2),
        torch.tensor(blocks)[:, None],
        block_size=BLOCK_SIZE,
        num_qo_heads=NUM_HEADS,
        num_kv_heads=NUM_HEADS,
    )
    slots = torch.cat([live_slots(plan, b) for b in (0, 1)])
    k, v = torch.cat([r.k for r in requests]), torch.cat([r.v for r in requests])
    treeattn.write_kv(k, v, *pools, slots)
    out = treeattn.tree_attention(torch.cat([r.q for r in requests]), *pools, plan)
    assert isinstance(out, Tensor)
    accepted = accepted_path([PATH, PATH], plan.max_depth + 1)
    moved = treeattn.remap_kv([pools[0]], [pools[1]], plan, accepted)
    assert moved.tolist() == [3, 3]
    kept = CONTEXT_LEN + len(PATH)
    return out, [pool[block, :kept].clone() for pool in pools for block in blocks]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("offset", [2**31, 2**32], ids=["2^31", "2^32"])
def test_offsets(offset: int, dtype: torch.dtype, cpu_isa: str) -> None:
    far = offset // BLOCK_ELEMENTS
    shape = {"num_qo_heads": NUM_HEADS, "num_kv_heads": NUM_HEADS, "head_dim": HEAD_DIM}
    requests = [random_request(s, PARENTS, CONTEXT_LEN, dtype=dtype, **shape) for s in (0, 1)]
    near_pools = [torch.zeros(2, BLOCK_SIZE, NUM_HEADS, HEAD_DIM, dtype=dtype) for _ in "kv"]
    far_pools = [untouched_pool(far + 1, dtype) for _ in "kv"]
    assert far_pools[0][far].storage_offset() == offset
    near_out, near_rows = step((0, 1), requests, near_pools)
    far_out, far_rows = step((far - 1, far), requests, far_pools)
    assert same_bits(far_out, near_out)
    path = torch.tensor([*range(CONTEXT_LEN), *(CONTEXT_LEN + node for node in PATH)])
    truth = [rows[path] for r in zip(*((r.k, r.v) for r in requests), strict=True) for rows in r]
    for a, b, c in zip(far_rows, near_rows, truth, strict=True):
        assert same_bits(a, b) and same_bits(a, c)


def test_a_row_stride_beyond_32_bits(machine: str) -> None:
    """The stride is wide, not only its product: [row, block, ...] pools as a view."""
    rows = untouched_pool(2 * 65536 + 1, torch.bfloat16)  # 2^32 elements
    stride = 2**31
    view = rows.view(-1).as_strided((2, 2, 1, HEAD_DIM), (2 * HEAD_DIM, stride, HEAD_DIM, 1))
    k = torch.randn(3, 1, HEAD_DIM).bfloat16()
    treeattn.write_kv(k, k, view, view, torch.tensor([1, 2, 3]))
    flat = rows.view(-1)
    for row, start in enumerate((stride, 2 * HEAD_DIM, stride + 2 * HEAD_DIM)):
        assert torch.equal(flat[start : start + HEAD_DIM], k[row, 0])


def test_rows_of_logits_beyond_32_bits(machine: str) -> None:
    """[node, id] as a view whose second row begins 2^31 elements after the first."""
    stride, vocab_size = 2**31, 100
    memory = untouched_pool(stride // BLOCK_ELEMENTS + 1, torch.bfloat16).view(-1)
    logits = memory.as_strided((2, vocab_size), (stride, 1))
    logits[0, 7], logits[1, 9] = 1.0, 1.0
    got = treeattn.accept_path(logits, torch.tensor([0, 7]), plan_of([[-1, 0]]))
    assert got.emitted.tolist() == [[7, 9]]


def test_draft_rows_beyond_32_bits(machine: str) -> None:
    """Likewise of draft_probs, whose second row draws the second node."""
    stride, vocab_size = 2**31, 100
    memory = untouched_pool(stride // BLOCK_ELEMENTS + 1, torch.bfloat16).view(-1)
    draft = memory.as_strided((2, vocab_size), (stride, 1))
    draft[0, 7], draft[1, 9] = 1.0, 1.0
    logits = torch.zeros(3, vocab_size)
    logits[0, 7] = logits[1, 9] = 40.0
    got = treeattn.accept_path(
        logits, torch.tensor([0, 7, 9]), plan_of([[-1, 0, 1]]), rule="multistep", seeds=1,
        draft_probs=draft, draft_rows=torch.tensor([0, 0, 1]).int(),
    )  # fmt: skip
    assert got.path.tolist() == [[0, 1, 2]]
