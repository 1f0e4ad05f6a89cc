# SPDX-License-Identifier: Apache-2.0
"""A15: a table that does not cover context and tree is refused before anything is written."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support.logical import same_bits
from support.trees import pack_parents
from treeattn.plan import TreePlan, plan_tree

MACHINES = "all"

BLOCK_SIZE, NUM_NODES = 16, 20


def plan(
    context_len: int, table: list[int], device: str, *, max_depth: int | None = None
) -> TreePlan:
    parents, node_indptr = pack_parents([[-1, *range(NUM_NODES - 1)]])
    return plan_tree(
        parents.to(device),
        node_indptr.to(device),
        torch.tensor([context_len], device=device),
        torch.tensor([table], device=device),
        block_size=BLOCK_SIZE,
        num_qo_heads=1,
        num_kv_heads=1,
        max_depth=max_depth,
    )


def test_unreserved_entry(device: str) -> None:
    with pytest.raises(
        ValueError, match=r"request 0 must list 3 blocks for context_len 14 .*got 2"
    ):
        plan(14, [8, 3, -1], device)


def test_reserved_entry(device: str) -> None:
    slots = plan(14, [8, 3, 5], device).slot_mapping.tolist()
    assert slots == [8 * 16 + 14, 8 * 16 + 15, *range(3 * 16, 4 * 16), 5 * 16, 5 * 16 + 1]


@pytest.mark.parametrize("context_len", range(1, 41))
def test_every_boundary(context_len: int, device: str) -> None:
    needed = -(-(context_len + NUM_NODES) // BLOCK_SIZE)
    blocks = [8, 3, 5, 11][:needed]
    slots = plan(context_len, blocks, device).slot_mapping.tolist()
    assert {slot // BLOCK_SIZE for slot in slots} == set(blocks[context_len // BLOCK_SIZE :])
    message = f"must list {needed} blocks for context_len {context_len} .*got {needed - 1}"
    with pytest.raises(ValueError, match=message):
        plan(context_len, blocks[:-1], device)


@pytest.mark.parametrize("last", [-1, 5], ids=["unreserved", "reserved"])
def test_without_a_look_at_the_table_by_the_host(last: int, machine: str, device: str) -> None:
    """With max_depth a device reads the table alone: status 4, and no block is touched; else the
    blocks next to the listed ones stay as they are."""
    table = [8, 3, last]
    if machine == "cpu" and last < 0:
        with pytest.raises(ValueError, match="request 0 must list 3 blocks"):
            plan(14, table, device, max_depth=NUM_NODES - 1)
        return
    made = plan(14, table, device, max_depth=NUM_NODES - 1)
    assert made.status.tolist() == [0 if last >= 0 else 4]
    generator = torch.Generator().manual_seed(0)
    k_cache, v_cache = torch.randn(2, 13, BLOCK_SIZE, 1, 64, generator=generator).to(device)
    before = k_cache.clone(), v_cache.clone()
    rows = torch.randn(3, NUM_NODES, 1, 64, generator=generator).to(device)
    treeattn.write_kv(rows[1], rows[2], k_cache, v_cache, made.slot_mapping)
    out = treeattn.tree_attention(rows[0], k_cache, v_cache, made)
    logits = torch.zeros(NUM_NODES, 30, device=device)
    accepted = treeattn.accept_path(logits, torch.zeros(NUM_NODES).long().to(device), made)
    moved = treeattn.remap_kv([k_cache], [v_cache], made, accepted)
    assert isinstance(out, torch.Tensor)
    listed = [8, 3, 5] if last >= 0 else []
    others = [block for block in range(13) if block not in listed]
    for cache, old in zip((k_cache, v_cache), before, strict=True):
        assert same_bits(cache[others], old[others])
        assert not listed or not same_bits(cache[listed], old[listed])
    if last < 0:
        assert out.count_nonzero() == 0 and accepted.status.tolist() == [4]
        assert accepted.path.tolist() == [[-1] * NUM_NODES] and moved.tolist() == [0]
