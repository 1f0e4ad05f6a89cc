# SPDX-License-Identifier: Apache-2.0
"""The search for what pays: longer chains until they saturate, then branches, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from treeattn.tune.trials import Setting, Trial

CHAINS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
TREES = (4, 6, 8, 12, 16, 24, 32, 48, 64)  # no chain is longer than the largest
PATIENCE = 2  # sizes in a row that may fail to beat the best one


@dataclass(frozen=True)
class Found:
    """What was tried at one batch size, and what of it paid.

    noise: how far plain decoding was from itself, in the median group of prompts. trials: chains
    first, then trees.
    """

    batch_size: int
    noise: float
    trials: tuple[Trial, ...]

    def best(self, shape: str) -> Trial | None:
        """The fastest of a shape, the first of equals; None when none was tried."""
        tried = [trial for trial in self.trials if trial.setting.shape == shape]
        return max(tried, key=lambda trial: trial.speedup, default=None)

    @property
    def verdict(self) -> Trial | None:
        """The tree if it beats the best chain, else the chain; None: neither beats plain decoding
        by more than plain decoding differs from itself."""
        best = max(self.trials, key=lambda trial: trial.speedup, default=None)
        return None if best is None or best.speedup <= 1.0 + self.noise else best


def search(
    batch_size: int,
    trial: Callable[[Setting], Trial],
    *,
    fits: Callable[[Setting], bool],
) -> Found:
    """Plain decoding against itself, then chains, then trees; never more than `most_trials`.

    Chains grow until PATIENCE lengths in a row were no faster than the best one. Trees start at the
    budget of the best chain and grow likewise; then smaller ones are tried as long as they are
    faster than that first tree, with the same patience.
    fits: whether a setting keeps the latency bound and the most rows of a step.
    """
    alone = trial(Setting("off", 1))
    chains = _grow("chain", CHAINS, trial, fits)
    best = max(chains, key=lambda found: found.speedup, default=alone)
    larger = [size for size in TREES if size >= best.setting.num_nodes]
    smaller = [size for size in reversed(TREES) if size < best.setting.num_nodes]
    trees = _grow("tree", larger, trial, fits)
    trees += _grow("tree", smaller, trial, fits, to_beat=trees[0].speedup if trees else 0.0)
    noise = abs(alone.typical - 1.0)  # one slow moment of the machine moves a sum, no median
    return Found(batch_size, noise, (*chains, *trees))


def most_trials() -> int:
    """An upper bound, for progress bars."""
    return 1 + len(CHAINS) + len(TREES)


def _grow(
    shape: str,
    sizes: Iterable[int],
    trial: Callable[[Setting], Trial],
    fits: Callable[[Setting], bool],
    to_beat: float = 0.0,
) -> list[Trial]:
    trials: list[Trial] = []
    failures = 0
    for size in sizes:
        setting = Setting(shape, size)
        if failures == PATIENCE or not fits(setting):
            break
        trials.append(trial(setting))
        speedup = trials[-1].speedup
        failures = 0 if speedup > to_beat else failures + 1
        to_beat = max(to_beat, speedup)
    return trials
