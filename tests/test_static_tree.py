# SPDX-License-Identifier: Apache-2.0
"""static_tree: Medusa's choices become parents and ranks."""

from __future__ import annotations

import random

import pytest
from treeattn.schedule import static_tree
from treeattn.tree import DraftTree


def test_order_is_depth_first_by_rank() -> None:
    parents, ranks = static_tree([[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0]])
    assert parents.tolist() == [-1, 0, 1, 2, 1, 0, 5, 0]
    assert ranks.tolist() == [0, 0, 0, 0, 1, 1, 0, 2]


@pytest.mark.parametrize("seed", range(10))
def test_every_choice_is_one_node(seed: int) -> None:
    """In any order of the choices, and with gaps between the ranks."""
    rng = random.Random(seed)
    paths: list[tuple[int, ...]] = [()]
    while len(paths) < 20:
        path = (*rng.choice(paths), rng.randrange(9))
        if path not in paths:
            paths.append(path)
    choices = [list(path) for path in paths[1:]]
    rng.shuffle(choices)
    parents, ranks = static_tree(choices)
    tree = DraftTree(ranks, parents)
    found = [tuple(ranks[tree.path(node)[1:]].tolist()) for node in range(len(tree))]
    assert found == sorted(paths)
    assert tree.dfs() == tree


def test_no_choices_are_the_root() -> None:
    parents, ranks = static_tree([])
    assert parents.tolist() == [-1] and ranks.tolist() == [0]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([[0], [0, 1], [1, 0]], r"choices hold \[1, 0\], but not its parent \[1\]"),
        ([[0], [0]], r"choices must be given once each, got \[0\]"),
        ([[]], r"choices must name at least one rank each, got \[\]"),
        ([[0], [0, -1]], r"choices must hold ranks >= 0, got \[0, -1\]"),
    ],
    ids=["orphan", "twice", "empty", "negative"],
)
def test_bad_input(choices: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        static_tree(choices)
