# SPDX-License-Identifier: Apache-2.0
"""A01: after a step the accepted rows are the dense prefix that the next step reads."""

from __future__ import annotations

import torch
from support.accepted import accepted_path
from support.trees import pack_parents
from treeattn.ops import remap_kv
from treeattn.plan import plan_tree

PARENTS = [-1, 0, 0, 1, 1, 2, 2]
CONTEXT_LEN, BLOCK_SIZE = 5, 4


def test_scattered_path_becomes_dense() -> None:
    table = torch.tensor([[9, 2, 17]], dtype=torch.int32)
    parents, node_indptr = pack_parents([PARENTS])
    plan = plan_tree(
        parents,
        node_indptr,
        torch.tensor([CONTEXT_LEN]),
        table,
        block_size=BLOCK_SIZE,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    # Every logical row holds its own number, all others NaN.
    k = torch.full((20, BLOCK_SIZE, 1, 2), torch.nan)
    for logical in range(CONTEXT_LEN + len(PARENTS)):
        k[table[0, logical // BLOCK_SIZE], logical % BLOCK_SIZE] = float(logical)
    v = -k
    moved = remap_kv([k], [v], plan, accepted_path([[0, 2, 6]], plan.max_depth + 1))
    assert moved.tolist() == [2]
    logical_k = k[plan.block_table[0].long()].flatten(0, 1)[:, 0, 0]
    root = CONTEXT_LEN
    assert logical_k[: CONTEXT_LEN + 3].tolist() == [0, 1, 2, 3, 4, root, root + 2, root + 6]
    logical_v = v[plan.block_table[0].long()].flatten(0, 1)[:, 0, 0]
    assert torch.equal(logical_v[: CONTEXT_LEN + 3], -logical_k[: CONTEXT_LEN + 3])
