# SPDX-License-Identifier: Apache-2.0
"""A14: a node's position is context_len + depth, whichever branch it is on."""

from __future__ import annotations

import torch
from support.trees import pack_parents
from treeattn.plan import plan_tree


def positions(parents: list[int], context_len: int) -> list[int]:
    tree, node_indptr = pack_parents([parents])
    plan = plan_tree(
        tree,
        node_indptr,
        torch.tensor([context_len]),
        torch.arange(8).reshape(1, 8),
        block_size=4,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    result: list[int] = plan.positions.tolist()
    return result


def test_two_branches() -> None:
    assert positions([-1, 0, 0, 1, 2, 2], 10) == [10, 11, 11, 12, 12, 12]


def test_layer_whose_parents_are_not_in_order() -> None:
    # Layer 1 is nodes 1 and 2; layer 2 selected the parents [1, 0, 1] among them.
    assert positions([-1, 0, 0, 2, 1, 2], 10) == [10, 11, 11, 12, 12, 12]


def test_next_root_after_two_accepted() -> None:
    assert positions([-1], 10 + 1 + 2) == [13]
