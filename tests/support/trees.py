# SPDX-License-Identifier: Apache-2.0
"""Random draft trees."""

from __future__ import annotations

import random
from itertools import accumulate

import torch
from torch import Tensor


def random_parents(rng: random.Random, num_nodes: int, branching: float = 0.5) -> list[int]:
    """A topological tree; branching 0 is a chain, 1 picks every parent uniformly."""
    parents = [-1] if num_nodes else []
    for i in range(1, num_nodes):
        parents.append(rng.randrange(i) if rng.random() < branching else i - 1)
    return parents


def pack_parents(
    trees: list[list[int]], dtype: torch.dtype = torch.int32, capacity: int | None = None
) -> tuple[Tensor, Tensor]:
    """(parents, node_indptr) of a ragged batch; rows up to `capacity` hold garbage."""
    indptr = [0, *accumulate(len(tree) for tree in trees)]
    flat = [parent for tree in trees for parent in tree]
    flat += [2**30] * ((capacity or 0) - len(flat))
    return torch.tensor(flat, dtype=dtype), torch.tensor(indptr, dtype=dtype)


def depth_of(parents: list[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return max(depths, default=0)


def random_path(rng: random.Random, parents: list[int]) -> list[int]:
    """Root first; walks down to a random depth."""
    path = [0]
    while children := [i for i, parent in enumerate(parents) if parent == path[-1]]:
        if rng.random() < 0.15:
            break
        path.append(rng.choice(children))
    return path
