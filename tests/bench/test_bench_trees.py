# SPDX-License-Identifier: Apache-2.0
"""The trees are what their names claim, and always the same."""

from __future__ import annotations

import pytest
import treeattn

from bench import trees
from bench.items.curves import depth_first


def density(parents: list[int]) -> float:
    return trees.visible_pairs(parents) / len(parents) ** 2


NAMES = ("eagle-16", "eagle-60", "seq-256", "dd-1024", "forest", "chain-9", "star-9", "d32-256")


@pytest.mark.parametrize("name", NAMES)
def test_topological_and_repeatable(name: str) -> None:
    parents = trees.make(name)
    treeattn.DraftTree(list(range(len(parents))), parents)  # raises for anything but a tree
    assert trees.make(name) == parents


@pytest.mark.parametrize(
    ("name", "nodes", "depth", "low", "high"),
    [
        ("chain-256", 256, 255, 0.5, 0.51),
        ("star-256", 256, 1, 0.0077, 0.0079),
        ("dense-256", 256, 128, 0.37, 0.39),
        ("d4-256", 256, 4, 0.012, 0.015),
        ("d8-256", 256, 8, 0.016, 0.022),
        ("d32-256", 256, 32, 0.05, 0.08),
        ("eagle-60", 60, 8, 0.06, 0.1),
        ("seq-256", 256, None, 0.013, 0.018),
        ("dd-1024", 1024, None, 0.006, 0.009),
    ],
)
def test_shape(name: str, nodes: int, depth: int | None, low: float, high: float) -> None:
    parents = trees.make(name)
    assert len(parents) == nodes
    if depth is not None:
        assert max(trees.depths(parents)) == depth
    assert low <= density(parents) <= high


def test_named_trees_keep_their_depth_bound() -> None:
    for name, bound in (("eagle-60", 8), ("seq-256", 12), ("dd-1024", 16)):
        assert max(trees.depths(trees.make(name))) <= bound


def test_the_density_curve_ascends() -> None:
    for n in (256, 1024):
        densities = [density(trees.make(f"{shape}-{n}")) for shape in trees.DENSITIES]
        assert densities == sorted(densities)


def test_forest_has_eight_long_branches() -> None:
    parents = trees.make("forest")
    leaves = sorted(set(range(len(parents))) - set(parents))
    depths = trees.depths(parents)
    lengths = [depths[leaf] for leaf in leaves]
    assert parents.count(0) == 8 == len(leaves) and (min(lengths), max(lengths)) == (64, 512)


def test_visible_pairs_by_hand() -> None:
    assert trees.visible_pairs([-1, 0, 0, 2]) == 1 + 2 + 2 + 3
    assert trees.path_to([-1, 0, 0, 2], 3) == [0, 2, 3]


@pytest.mark.parametrize("n", [1, 4, 16, 64, 256, 1024])
def test_for_size(n: int) -> None:
    assert len(trees.make(trees.for_size(n))) == n


def test_depth_first_keeps_the_tree() -> None:
    parents = trees.make("eagle-60")
    sorted_ = depth_first(parents)
    assert sorted(trees.depths(sorted_)) == sorted(trees.depths(parents))
    assert sorted_ != parents
    open_path = [0]
    for node in range(1, len(sorted_)):  # a parent is always on the path that is still open
        while open_path[-1] != sorted_[node]:
            open_path.pop()
        open_path.append(node)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="bush-3"):
        trees.make("bush-3")
