# SPDX-License-Identifier: Apache-2.0
"""Draft trees of known shape, from fixed seeds, as lists of parents (root first, parent -1)."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

Parents = list[int]

DENSITIES = ("star", "d4", "d8", "d32", "dense", "chain")  # trees of one size, ascending
PEAKY, FLAT = 0.15, 1.0  # Dirichlet concentration of a node's next-token law
_BRANCHING = 8  # children that a node may get


def chain(num_nodes: int) -> Parents:
    """One path: the densest tree there is, half of all pairs see each other."""
    return list(range(-1, num_nodes - 1))


def star(num_nodes: int) -> Parents:
    """A root and leaves: the sparsest tree of its size."""
    return [-1] + [0] * (num_nodes - 1)


def broom(num_nodes: int) -> Parents:
    """A trunk of half the nodes with all others as leaves of its tip: dense, but no chain."""
    trunk = num_nodes // 2
    return chain(trunk) + [trunk - 1] * (num_nodes - trunk)


def layered(num_nodes: int, depth: int, seed: int = 0) -> Parents:
    """`depth` levels below the root, equally wide, every parent drawn from the level above."""
    rng = random.Random(seed)
    parents, above = [-1], [0]
    for level in range(depth):
        width = (num_nodes - 1) * (level + 1) // depth - (num_nodes - 1) * level // depth
        nodes = list(range(len(parents), len(parents) + width))
        parents += [rng.choice(above) for _ in nodes]
        above = nodes or above
    return parents


def best_first(num_nodes: int, depth: int, concentration: float, seed: int = 0) -> Parents:
    """The likeliest nodes of a random drafter, in order of falling score, as drafters emit them."""
    rng = random.Random(seed)
    parents: Parents = []
    heap: list[tuple[float, int, int, int]] = [(0.0, 0, -1, 0)]  # -score, tie, parent, depth
    ties = 0
    while len(parents) < num_nodes:
        cost, _, parent, level = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        if level == depth:
            continue
        weights = [rng.gammavariate(concentration, 1.0) + 1e-12 for _ in range(_BRANCHING)]
        for weight in weights:
            ties += 1
            heapq.heappush(heap, (cost - math.log(weight / sum(weights)), ties, node, level + 1))
    return parents


def forest(branches: int = 8, shortest: int = 64, longest: int = 512) -> Parents:
    """Long continuations that share only the context and the root, as in parallel reasoning."""
    parents = [-1]
    for b in range(branches):
        length = shortest + (longest - shortest) * b // (branches - 1)
        parents += [0, *range(len(parents), len(parents) + length - 1)]
    return parents


_NAMED: dict[str, Callable[[], Parents]] = {
    "eagle-16": lambda: best_first(16, 6, PEAKY),
    "eagle-60": lambda: best_first(60, 8, PEAKY),
    "eagle-64": lambda: best_first(64, 8, PEAKY),
    "seq-256": lambda: best_first(256, 12, FLAT),
    "dd-1024": lambda: best_first(1024, 16, PEAKY),
    "forest": forest,
}
_SIZED: dict[str, Callable[[int], Parents]] = {"chain": chain, "star": star, "dense": broom}


def make(name: str) -> Parents:
    """A tree by name: eagle-60, seq-256, dd-1024, forest, chain-N, star-N, dense-N, dD-N."""
    if name in _NAMED:
        return _NAMED[name]()
    kind, _, size = name.rpartition("-")
    if kind in _SIZED:
        return _SIZED[kind](int(size))
    if kind.startswith("d") and kind[1:].isdigit():
        return layered(int(size), int(kind[1:]))
    raise ValueError(f"trees.make: name must be one of the known trees, got {name!r}")


def for_size(num_nodes: int) -> str:
    """The name of the tree that a drafter would typically emit at this size."""
    known = {1: "chain-1", 16: "eagle-16", 64: "eagle-64", 256: "seq-256", 1024: "dd-1024"}
    return known.get(num_nodes, f"d{min(4, num_nodes - 1)}-{num_nodes}")


def depths(parents: Parents) -> list[int]:
    result: list[int] = []
    for parent in parents:
        result.append(result[parent] + 1 if parent >= 0 else 0)
    return result


def visible_pairs(parents: Parents) -> int:
    """How many (node, ancestor or itself) pairs a mask of this tree has."""
    return sum(depth + 1 for depth in depths(parents))


def path_to(parents: Parents, node: int) -> list[int]:
    """Root first, `node` last."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]
