# SPDX-License-Identifier: Apache-2.0
"""Which settings are tried, in which order, and what is said of them in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from support.tuning import trial
from treeattn.tune.search import CHAINS, PATIENCE, TREES, Found, most_trials, search
from treeattn.tune.trials import Setting, Trial


def searched(
    speedups: Mapping[str, float],
    *,
    fits: Callable[[Setting], bool] = lambda setting: True,
    alone: tuple[float, float] = (1.0, 1.0),
) -> tuple[Found, list[str]]:
    """What is found, and what was tried, where a setting that is not named is not faster."""
    tried: list[str] = []

    def run(setting: Setting) -> Trial:
        tried.append(str(setting))
        if setting.shape == "off":
            return trial(setting, *alone)
        return trial(setting, speedups.get(str(setting), 0.5))

    return search(3, run, fits=fits), tried


def test_chains_grow_until_patience_ends() -> None:
    chains = {"chain-2": 1.1, "chain-3": 1.3, "chain-4": 1.3, "chain-6": 1.4}
    found, tried = searched(chains)
    assert tried[0] == "off"
    assert tried[1:7] == [f"chain-{size}" for size in (2, 3, 4, 6, 8, 12)]
    assert tried[7].startswith("tree-")
    assert [str(t.setting) for t in found.trials] == tried[1:]
    assert found.batch_size == 3


def test_a_tie_is_a_failure() -> None:
    _, tried = searched({"chain-2": 1.3, "chain-3": 1.3, "chain-4": 1.3, "chain-6": 2.0})
    assert "chain-4" in tried and "chain-6" not in tried
    assert PATIENCE == 2


def test_trees_start_at_the_best_chain_and_go_both_ways() -> None:
    chains = {"chain-2": 1.1, "chain-3": 1.2, "chain-4": 1.3, "chain-6": 1.4, "chain-8": 1.5}
    trees = {"tree-8": 1.6, "tree-12": 1.7, "tree-6": 1.65, "tree-4": 1.5}
    found, tried = searched({**chains, **trees})
    assert [name for name in tried if name.startswith("tree")] == [
        *("tree-8", "tree-12", "tree-16", "tree-24"),  # up: two fail to beat tree-12
        *("tree-6", "tree-4"),  # down: as long as tree-8 is beaten
    ]
    assert found.verdict is not None and str(found.verdict.setting) == "tree-12"


def test_smaller_trees_have_to_beat_the_first_one_only() -> None:
    """tree-12 is slower than tree-24, but faster than tree-16, where trees started."""
    chains = {f"chain-{size}": 1 + size / 100 for size in CHAINS[: CHAINS.index(16) + 1]}
    trees = {"tree-16": 1.5, "tree-24": 1.9, "tree-12": 1.6, "tree-8": 1.6, "tree-6": 1.7}
    _, tried = searched({**chains, **trees})
    down = [name for name in tried if name in ("tree-12", "tree-8", "tree-6", "tree-4")]
    assert down == ["tree-12", "tree-8", "tree-6", "tree-4"]


def test_smaller_trees_end_with_patience_too() -> None:
    chains = {f"chain-{size}": 1 + size / 100 for size in CHAINS}
    _, tried = searched({**chains, "tree-32": 1.5})
    assert tried[-4:] == ["tree-48", "tree-64", "tree-24", "tree-16"]


@pytest.mark.parametrize("most", [1, 2, 5, 16, 64])
def test_nothing_is_tried_that_does_not_fit(most: int) -> None:
    growing = {f"{shape}-{size}": 1 + size for shape in ("chain", "tree") for size in range(100)}
    found, tried = searched(growing, fits=lambda setting: setting.num_nodes <= most)
    assert tried[1:] == [str(t.setting) for t in found.trials]
    chains = [name for name in tried if name.startswith("chain")]
    assert chains == [f"chain-{size}" for size in CHAINS if size <= most]
    assert all(t.setting.num_nodes <= most for t in found.trials)
    assert (found.verdict is None) == (most == 1)


def test_growth_ends_at_the_first_that_does_not_fit() -> None:
    growing = {f"chain-{size}": 1 + size / 10 for size in CHAINS}
    _, tried = searched(growing, fits=lambda setting: setting.num_nodes != 6)
    assert [name for name in tried if name.startswith("chain")] == ["chain-2", "chain-3", "chain-4"]
    assert [name for name in tried if name.startswith("tree")] == ["tree-4"]


@pytest.mark.parametrize("rising", [True, False])
def test_never_more_than_most_trials(rising: bool) -> None:
    every = {
        f"{shape}-{size}": 2.0 + (size if rising else -size) / 100
        for shape in ("chain", "tree")
        for size in {*CHAINS, *TREES}
    }
    _, tried = searched(every)
    assert len(tried) == len(set(tried)) <= most_trials()
    if rising:
        assert set(tried) >= {f"chain-{size}" for size in CHAINS} | {
            "tree-32",
            "tree-48",
            "tree-64",
        }


def test_the_bound_is_reached() -> None:
    """Every chain beats the one before; so does every tree in its direction."""
    chains = {f"chain-{size}": 1 + size / 100 for size in CHAINS}
    trees = {f"tree-{size}": 2.0 + abs(size - 32) / 100 for size in TREES}
    _, tried = searched({**chains, **trees})
    assert len(tried) == most_trials()


@pytest.mark.parametrize(
    ("speedups", "alone", "verdict"),
    [
        ({"chain-2": 1.2, "tree-4": 1.3}, (1.0, 1.0), "tree-4"),
        ({"chain-2": 1.3, "tree-4": 1.2}, (1.0, 1.0), "chain-2"),
        ({"chain-2": 1.3, "tree-4": 1.3}, (1.0, 1.0), "chain-2"),
        ({"chain-2": 1.3, "chain-3": 1.3}, (1.0, 1.0), "chain-2"),
        ({"chain-2": 0.9, "tree-4": 0.9}, (1.0, 1.0), None),
        ({"chain-2": 1.0}, (1.0, 1.0), None),
        ({"chain-2": 1.0625}, (1.0, 1.0625), None),
        ({"chain-2": 1.0625}, (1.0, 0.9375), None),
        ({"chain-2": 1.0625}, (3.0, 1.0), "chain-2"),  # one slow moment, not the usual group
        ({"chain-2": 1.125}, (1.0625, 0.9375), "chain-2"),
    ],
)
def test_verdict(
    speedups: dict[str, float], alone: tuple[float, float], verdict: str | None
) -> None:
    """A tree has to beat the best chain, and either plain decoding by more than the noise."""
    found, _ = searched(speedups, alone=alone)
    assert found.noise == abs(alone[1] - 1.0)
    assert (None if found.verdict is None else str(found.verdict.setting)) == verdict


def test_best_of_a_shape() -> None:
    found, _ = searched({"chain-2": 1.1, "chain-3": 1.2, "tree-4": 1.05})
    chain, tree = found.best("chain"), found.best("tree")
    assert chain is not None and str(chain.setting) == "chain-3"
    assert tree is not None and str(tree.setting) == "tree-4"
    nothing, _ = searched({}, fits=lambda setting: False)
    assert nothing.trials == () and nothing.best("chain") is None and nothing.verdict is None
