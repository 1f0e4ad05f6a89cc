# SPDX-License-Identifier: Apache-2.0
"""A30: a description of another batch's shape is refused by name, and nothing is launched."""

from __future__ import annotations

import pytest
import torch
from support.trees import pack_parents
from treeattn.plan import plan_tree


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([0, 0, 1], r"parents\[0\] of request 0 must be -1 \(the root\), got 0"),
        ([-1, 1, 1], r"parents\[1\] of request 0 must be in \[0, 1\), got 1"),
        ([-1, -2, 1], r"parents\[1\] of request 0 must be in \[0, 1\), got -2"),
        ([-1, 2, 1], r"parents\[1\] of request 0 must be in \[0, 1\), got 2"),
        ([-1, 0, -1], r"parents of request 0 must have one root, node 2 is a second one"),
    ],
    ids=["no_root", "own_parent", "below_root", "cycle", "two_roots"],
)
def test_topology(parents: list[int], message: str) -> None:
    tree, node_indptr = pack_parents([parents])
    with pytest.raises(ValueError, match=message):
        plan_tree(
            tree,
            node_indptr,
            torch.tensor([2]),
            torch.tensor([[0, 1]]),
            block_size=4,
            num_qo_heads=1,
            num_kv_heads=1,
        )


@pytest.mark.parametrize(
    ("node_indptr", "message"),
    [
        ([0, 3, 2, 4], "node_indptr must not decrease, got 3 then 2 at request 1"),
        ([0, 1, 2, 3], "node_indptr must end at the 4 rows of parents"),
        ([0, 1, 2, 5], "node_indptr must end at the 4 rows of parents"),
    ],
    ids=["decreasing", "short", "long"],
)
def test_indptr(node_indptr: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_tree(
            torch.tensor([-1, 0, 1, 2]),
            torch.tensor(node_indptr),
            torch.zeros(3, dtype=torch.int32),
            torch.arange(6).reshape(3, 2),
            block_size=4,
            num_qo_heads=1,
            num_kv_heads=1,
        )
