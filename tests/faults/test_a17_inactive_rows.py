# SPDX-License-Identifier: Apache-2.0
"""A17: rows that pad a batch to its bucket write nothing, wherever their stale tables point."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support.acceptance import one_hot_logits
from support.logical import same_bits
from support.trees import pack_parents
from torch import Tensor
from treeattn.kv_cache import BlockPool

MACHINES = "all"

BLOCK_SIZE, NUM_BLOCKS, NUM_HEADS, HEAD_DIM, VOCAB = 4, 32, 2, 64, 16
BUCKET, LIVE = 4, 2
# The second child's path is accepted, so that rows move: nodes 0, 2, 4.
TREE, TOKENS, ARGMAX = [-1, 0, 0, 1, 2], [9, 1, 2, 3, 4], [2, 0, 4, 0, 7]
BYSTANDER = 5  # a sequence of another conversation, not in the batch


def pool_with(context_lens: list[int]) -> BlockPool:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    pool.create(BYSTANDER, list(range(11)))
    for seq, length in enumerate(context_lens):
        pool.create(seq, list(range(length)))
        pool.reserve(seq, len(TREE))
    return pool


def table_of(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [2**30] * (width - len(row)) for row in rows], dtype=torch.int32)


@pytest.mark.parametrize("stale", ["own tree", "other's tree", "bystander"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_only_blocks_of_live_rows_change(dtype: torch.dtype, stale: str, device: str) -> None:
    context_lens = [6, 9]
    pool = pool_with(context_lens)
    live = [pool.block_table(seq) for seq in range(LIVE)]
    left_over = {
        "own tree": live[::-1],
        "other's tree": live,
        "bystander": [pool.block_table(BYSTANDER)] * 2,
    }[stale]
    block_table = table_of(live + left_over).to(device)
    stale_lens = [len(left_over[0]) * BLOCK_SIZE - 1, 0]
    parents, node_indptr = pack_parents([TREE, TREE], capacity=BUCKET * len(TREE))
    node_indptr = torch.cat([node_indptr, node_indptr[-1:].repeat(BUCKET - LIVE)])
    num_rows = len(parents)
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    shape = NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, HEAD_DIM
    k_cache, v_cache = randn(*shape), randn(*shape)
    before = [cache.clone() for cache in (k_cache, v_cache)]
    ref_counts = [pool.ref_count(block) for block in range(NUM_BLOCKS)]

    plan = treeattn.plan_tree(
        parents.to(device),
        node_indptr.to(device),
        torch.tensor(context_lens + stale_lens, dtype=torch.int32, device=device),
        block_table,
        block_size=BLOCK_SIZE,
        num_qo_heads=NUM_HEADS,
        num_kv_heads=NUM_HEADS,
        max_depth=len(TREE) - 1,
    )
    nodes = num_rows, NUM_HEADS, HEAD_DIM
    treeattn.write_kv(randn(*nodes), randn(*nodes), k_cache, v_cache, plan.slot_mapping)
    out, lse = treeattn.tree_attention(randn(*nodes), k_cache, v_cache, plan, return_lse=True)
    logits = one_hot_logits(ARGMAX * LIVE + [1] * (num_rows - LIVE * len(TREE)), VOCAB)
    tokens = torch.tensor(TOKENS * LIVE + [2] * (num_rows - LIVE * len(TREE)))
    accepted = treeattn.accept_path(logits.to(device), tokens.to(device), plan)
    moved = treeattn.remap_kv([k_cache], [v_cache], plan, accepted)

    assert accepted.status.tolist() == [0, 0, 3, 3]
    assert accepted.path.tolist() == [[0, 2, 4, -1, -1]] * LIVE + [[-1] * 5] * (BUCKET - LIVE)
    assert accepted.num_accepted.tolist() == [2, 2, 0, 0]
    assert accepted.next_tokens.tolist() == [7, 7, -1, -1]
    assert moved.tolist()[LIVE:] == [0, 0] and min(moved.tolist()[:LIVE]) > 0
    num_live = LIVE * len(TREE)
    assert out[num_live:].count_nonzero() == 0 and (lse[num_live:] == -torch.inf).all()
    assert out[:num_live].isfinite().all()
    own = sorted({block for row in live for block in row})
    others = [block for block in range(NUM_BLOCKS) if block not in own]
    for cache, old in zip((k_cache, v_cache), before, strict=True):
        assert same_bits(cache[others], old[others])
        assert not same_bits(cache[own], old[own])
    assert plan.block_table[LIVE:].tolist() == table_of(live + left_over)[LIVE:].tolist()

    for seq, table in enumerate(plan.block_table[:LIVE].tolist()):
        path = [TOKENS[node] for node in (0, 2, 4)]
        pool.commit(seq, path, block_table=table[: len(live[seq])])
    pool.check()
    assert pool.block_table(BYSTANDER) == pool_with(context_lens).block_table(BYSTANDER)
    now = [pool.ref_count(block) for block in range(NUM_BLOCKS)]
    assert [now[block] for block in others] == [ref_counts[block] for block in others]
