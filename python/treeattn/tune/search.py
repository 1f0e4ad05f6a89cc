# SPDX-License-Identifier: Apache-2.0
"""The search for what pays: longer chains until they saturate, then branches, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from treeattn.tune.trials import Setting, Trial

CHAINS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
TREES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
PATIENCE = 2  # sizes in a row that may fail to beat the best one


@dataclass(frozen=True)
class Found:
    """What was tried at one batch size, and what of it paid.

    noise: how far plain decoding was from itself. trials: chains first, then trees.
    """

    batch_size: int
    noise: float
    trials: tuple[Trial, ...]

    def best(self, shape: str) -> Trial | None:
        """The fastest of a shape; None when none was tried."""
        tried = [trial for trial in self.trials if trial.setting.shape == shape]
        return max(tried, key=lambda trial: trial.speedup, default=None)

    @property
    def verdict(self) -> Trial | None:
        """The tree if it beats the best chain, else the chain; None: neither beats plain decoding
        by more than plain decoding differs from itself."""
        chain, tree = self.best("chain"), self.best("tree")
        if chain is None or (tree is not None and tree.speedup > chain.speedup):
            chain = tree
        return None if chain is None or chain.speedup <= 1.0 + self.noise else chain


def search(
    batch_size: int,
    trial: Callable[[Setting], Trial],
    *,
    fits: Callable[[Setting], bool],
) -> Iterator[Trial]:
    """Trials in the order in which they are run; plain decoding against itself comes first.

    Chains grow until PATIENCE lengths in a row were no faster than the best one. Then trees, from
    the budget of the best chain on, and below it as long as that is faster: each has the nodes of
    a chain and spends some of them on branches.
    fits: whether a setting keeps the latency bound and the most rows of a step.
    """
    yield trial(Setting("off", 1))
    best_chain = 1
    best_speedup = 0.0
    for found in _grow([Setting("chain", size) for size in CHAINS], trial, fits):
        yield found
        if found.speedup > best_speedup:
            best_chain, best_speedup = found.setting.num_nodes, found.speedup
    start = next((i for i, size in enumerate(TREES) if size >= best_chain), len(TREES) - 1)
    larger = [Setting("tree", size) for size in TREES[start:]]
    smaller = [Setting("tree", size) for size in reversed(TREES[:start])]
    first = 0.0
    for index, found in enumerate(_grow(larger, trial, fits)):
        yield found
        first = found.speedup if index == 0 else first
    for found in _grow(smaller, trial, fits, to_beat=first):
        yield found


def most_trials() -> int:
    """An upper bound, for progress bars."""
    return 1 + len(CHAINS) + len(TREES)


def _grow(
    settings: Sequence[Setting],
    trial: Callable[[Setting], Trial],
    fits: Callable[[Setting], bool],
    to_beat: float = 0.0,
) -> Iterator[Trial]:
    failures = 0
    for setting in settings:
        if failures == PATIENCE or not fits(setting):
            return
        found = trial(setting)
        yield found
        failures = 0 if found.speedup > to_beat else failures + 1
        to_beat = max(to_beat, found.speedup)
