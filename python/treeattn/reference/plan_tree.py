# SPDX-License-Identifier: Apache-2.0
"""What the plan of one verify step must hold, computed node by node."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """The derived half of `treeattn.TreePlan`; same shapes and dtypes."""

    depths: Tensor
    positions: Tensor
    slot_mapping: Tensor
    ancestors: Tensor
    order: Tensor
    status: Tensor
    max_depth: int


def plan_tree(
    parents: Tensor,
    node_indptr: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    slot_mapping: Tensor | None = None,
    max_depth: int | None = None,
) -> Plan:
    """Plan valid trees; nothing is checked. Rows past the last request are 0, their slot -1."""
    indptr = node_indptr.tolist()
    num_nodes, num_requests = len(parents), len(context_lens)
    largest = max((end - start for start, end in pairwise(indptr)), default=0)
    depths = [0] * num_nodes
    positions = [0] * num_nodes
    slots = [-1] * num_nodes
    words = [[0] * ((largest + 31) // 32) for _ in range(num_nodes)]
    order = [0] * num_nodes
    status = [0] * num_requests
    for b in range(num_requests):
        tree = parents[indptr[b] : indptr[b + 1]].tolist()
        if not tree:
            status[b] = 3
            continue
        context_len = int(context_lens[b])
        for i in range(len(tree)):
            row = indptr[b] + i
            path = ancestors_of(tree, i)
            depths[row] = len(path) - 1
            positions[row] = context_len + depths[row]
            for node in path:
                words[row][node // 32] |= 1 << (node % 32)
            if slot_mapping is None:
                block, offset = divmod(context_len + i, block_size)
                slots[row] = int(block_table[b, block]) * block_size + offset
            else:
                slots[row] = int(slot_mapping[row])
        order[indptr[b] : indptr[b + 1]] = preorder(tree)
    return Plan(
        depths=torch.tensor(depths, dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int32),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        ancestors=_as_int32(words, (largest + 31) // 32),
        order=torch.tensor(order, dtype=torch.int32),
        status=torch.tensor(status, dtype=torch.int32),
        max_depth=max(depths, default=0) if max_depth is None else max_depth,
    )


def ancestors_of(parents: list[int], node: int) -> list[int]:
    """`node` and everything above it, node first, root last."""
    path = [node]
    while parents[path[-1]] != -1:
        path.append(parents[path[-1]])
    return path


def preorder(parents: list[int]) -> list[int]:
    """Node ids in depth-first order, children by index."""
    visited: list[int] = []
    waiting = [0]
    while waiting:
        node = waiting.pop()
        visited.append(node)
        waiting.extend(reversed([i for i, parent in enumerate(parents) if parent == node]))
    return visited


def _as_int32(words: list[list[int]], num_words: int) -> Tensor:
    signed = [[word - 2**32 if word >= 2**31 else word for word in row] for row in words]
    return torch.tensor(signed, dtype=torch.int32).reshape(len(words), num_words)
