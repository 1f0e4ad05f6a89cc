# SPDX-License-Identifier: Apache-2.0
"""sequoia_tree against every tree there is, and against best-first growth where that is exact."""

from __future__ import annotations

import heapq
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import depth_of
from treeattn.schedule import sequoia_tree
from treeattn.tree import DraftTree

MAX_NODES, MAX_DEPTH = 9, 4

Shape = tuple["Shape", ...]  # the subtrees below a node, in order


@cache
def forests(num_nodes: int, levels: int) -> list[Shape]:
    """Every ordered forest of so many nodes and at most so many levels."""
    if num_nodes == 0:
        return [()]
    if levels == 0:
        return []
    return [
        (first, *rest)
        for size in range(1, num_nodes + 1)
        for first in forests(size - 1, levels - 1)
        for rest in forests(num_nodes - size, levels)
    ]


def accepted(forest: Shape, p: list[float]) -> float:
    """Expected accepted nodes below a node that has these subtrees."""
    chances = [*p, *[0.0] * len(forest)]
    return sum(
        chance * (1 + accepted(tree, p)) for chance, tree in zip(chances, forest, strict=False)
    )


def expected(parents: list[int], p: list[float]) -> float:
    """Expected tokens of a tree, by its parents alone."""
    tree = DraftTree([0] * len(parents), parents)
    chance = [1.0] * len(parents)
    for node in range(len(parents)):
        for rank, child in enumerate(tree.children(node)):
            chance[child] = chance[node] * (p[rank] if rank < len(p) else 0.0)
    return sum(chance)


def is_depth_first(parents: list[int]) -> bool:
    tree = DraftTree([0] * len(parents), parents, draws="iid")
    return tree.dfs().parents.tolist() == parents


def check(p: list[float], num_nodes: int, max_depth: int) -> None:
    parents, tokens = sequoia_tree(p, num_nodes, max_depth)
    best = max(1 + accepted(f, p) for n in range(num_nodes) for f in forests(n, max_depth))
    assert tokens == pytest.approx(best, rel=1e-13)
    assert expected(parents.tolist(), p) == pytest.approx(best, rel=1e-13)
    assert len(parents) <= num_nodes
    assert depth_of(parents.tolist()) <= max_depth
    assert is_depth_first(parents.tolist())


def test_the_oracle_sees_every_tree() -> None:
    catalan = [1, 1, 2, 5, 14, 42, 132, 429, 1430]
    assert [len(forests(n, MAX_NODES)) for n in range(MAX_NODES)] == catalan
    assert len(forests(4, 1)) == 1 and len(forests(4, 2)) == 8


@pytest.mark.parametrize("seed", range(3))
def test_every_size_and_depth(seed: int) -> None:
    rng = random.Random(seed)
    p = [rng.random() for _ in range(rng.randint(1, 6))]
    for num_nodes in range(1, MAX_NODES + 1):
        for max_depth in range(MAX_DEPTH + 1):
            check(p, num_nodes, max_depth)


@settings(max_examples=60, deadline=None)
@given(
    p=st.lists(st.sampled_from([0.0, 1.0]) | st.floats(0, 1), max_size=6),
    num_nodes=st.integers(1, MAX_NODES),
    max_depth=st.integers(0, MAX_DEPTH),
)
def test_random_chances(p: list[float], num_nodes: int, max_depth: int) -> None:
    """In any order, with zeros and ones among them."""
    check(p, num_nodes, max_depth)


@pytest.mark.parametrize("seed", range(8))
def test_falling_chances_grow_best_first(seed: int) -> None:
    """With p that falls, no node is likelier than its parent or earlier sibling: take the best."""
    rng = random.Random(seed)
    p = sorted((rng.random() for _ in range(8)), reverse=True)
    num_nodes, max_depth = rng.randint(50, 300), rng.randint(3, 12)
    queue, tokens = [(-p[0], 0, 1)], 1.0
    for _ in range(num_nodes - 1):
        chance, rank, depth = heapq.heappop(queue)
        tokens -= chance
        if rank + 1 < len(p):
            heapq.heappush(queue, (chance / p[rank] * p[rank + 1], rank + 1, depth))
        if depth < max_depth:
            heapq.heappush(queue, (chance * p[0], 0, depth + 1))
    parents, found = sequoia_tree(p, num_nodes, max_depth)
    assert found == pytest.approx(tokens, rel=1e-12)
    assert expected(parents.tolist(), p) == pytest.approx(tokens, rel=1e-12)
    assert len(parents) == num_nodes


def test_known_shapes() -> None:
    parents, tokens = sequoia_tree([0.7], 4, 10)
    assert parents.tolist() == [-1, 0, 1, 2] and parents.dtype == np.int32
    assert tokens == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    parents, tokens = sequoia_tree([0.5, 0.4], 4, 2)
    assert parents.tolist() == [-1, 0, 1, 0]  # the sibling at 0.4 and the nephew at 0.25
    assert tokens == pytest.approx(2.15)
    assert sequoia_tree([0.9, 0.1], 100, 1)[0].tolist() == [-1, 0, 0]


@pytest.mark.parametrize("p", [[], [0.0, 0.0]], ids=["none", "zeros"])
def test_nodes_that_add_nothing_are_left_out(p: list[float]) -> None:
    parents, tokens = sequoia_tree(p, 8, 3)
    assert parents.tolist() == [-1] and tokens == 1.0
    assert sequoia_tree([0.5, *p], 8, 1)[0].tolist() == [-1, 0]


@pytest.mark.parametrize("depth", [0, 5])
def test_root_alone(depth: int) -> None:
    parents, tokens = sequoia_tree([0.9], 1, depth)
    assert parents.tolist() == [-1] and tokens == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 1.5], 4, 2), r"p\[1\] must be in \[0, 1\], got 1.5"),
        (([float("nan")], 4, 2), r"p\[0\] must be in \[0, 1\], got nan"),
        (([-0.1], 4, 2), r"p\[0\] must be"),
        (([0.5], 0, 2), r"num_nodes must be in \[1, 2\^31\) \(the root counts\), got 0"),
        (([0.5], 4, -1), "max_depth must be >= 0, got -1"),
    ],
)
def test_bad_input(arguments: tuple[list[float], int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequoia_tree(*arguments)
