# SPDX-License-Identifier: Apache-2.0
"""What a tuning run's numbers say: predictions, acceptance, regret, gains by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from treeattn.cost_file import CostTables
from treeattn.schedule import Fixed, Online, Schedule
from treeattn.schedule.learned import DEPTHS, RANKS
from treeattn.schedule.online import Drafting
from treeattn.schedule.recording import Recording
from treeattn.schedule.replay import Replayed, replay
from treeattn.tune.run import RECORDED_NODES, ROWS, Prompt, Tuned
from treeattn.tune.search import CHAINS, TREES
from treeattn.tune.trials import Trial, groups

LARGE_DRAFT = 32
_CERTAIN = [[1e9] * RANKS for _ in range(DEPTHS)]  # as said, so seen
_ANY_STEP_TAKES_1 = CostTables(((1 << 20, 1 << 30, 1.0),))


def replayed(tuned: Tuned, schedule: Schedule, batch_size: int) -> Replayed:
    """The greedy recordings decoded again at the measured costs.

    As in the trials, one group of `batch_size` ends before the next begins.
    """
    total = Replayed()
    for group in groups(tuned.recordings[0.0], batch_size):
        total.add(replay(group, schedule, tuned.policy.costs, batch_size=batch_size))
    return total


def predicted(tuned: Tuned, trial: Trial) -> float:
    """The speed-up that the cost tables and the recorded drafts promise."""
    setting = trial.setting
    schedule: Schedule = (
        Online(tuned.policy, ROWS[-1])
        if setting.follows_policy
        else Fixed(setting.num_nodes, setting.shape)
    )
    plain = replayed(tuned, Fixed(1), trial.batch_size)
    return plain.total_ms / replayed(tuned, schedule, trial.batch_size).total_ms


def best_fixed(tuned: Tuned, batch_size: int) -> tuple[str, float]:
    """The fixed setting that replays fastest, plain decoding among them, and its milliseconds."""
    settings = {"off": Fixed(1)}
    for shape, sizes in (("chain", CHAINS), ("tree", TREES)):
        for size in sizes:
            if size <= RECORDED_NODES and size * batch_size <= ROWS[-1]:
                settings[f"{shape}-{size}"] = Fixed(size, shape)
    times = {
        name: replayed(tuned, schedule, batch_size).total_ms for name, schedule in settings.items()
    }
    best = min(times, key=times.__getitem__)
    return best, times[best]


def regret(tuned: Tuned, batch_size: int) -> tuple[float, str]:
    """How much longer the online policy replays than the best fixed setting in hindsight, as a
    part of the latter, and which that is; negative: it is faster than any."""
    name, ms = best_fixed(tuned, batch_size)
    online = replayed(tuned, Online(tuned.policy, ROWS[-1]), batch_size)
    return online.total_ms / ms - 1.0, name


class _DoesNotLearn(Online):
    """A policy that stays with what it knew before the first step."""

    def observe(self, request: Drafting, emitted: Sequence[int]) -> None:
        pass


def pruning(tuned: Tuned, batch_size: int) -> dict[str, Replayed]:
    """What is saved before verify, and what by learning after it, replayed at equal drafts.

    Each line prunes more than the one before: nothing; before verify, by the drafter's word as it
    is; by that word as the recordings corrected it; by what each request teaches as it goes on.
    """
    most_rows = max(int(point[0]) for point in tuned.policy.costs.at(batch_size).verify)
    num_nodes = max(tuned.policy.verdict(batch_size).num_nodes, LARGE_DRAFT)
    num_nodes = max(1, min(num_nodes, most_rows // batch_size))
    verdict = replace(tuned.policy.verdict(batch_size), shape="tree", num_nodes=num_nodes)
    policy = replace(tuned.policy, verdicts={batch_size: verdict})
    as_said = replace(policy, learned={"said": _CERTAIN, "seen": _CERTAIN})
    schedules: dict[str, Schedule] = {
        "nothing": Fixed(num_nodes, "tree"),
        "before verify, by the drafter's word": _DoesNotLearn(as_said, ROWS[-1]),
        "... corrected by the recordings": _DoesNotLearn(policy, ROWS[-1]),
        "... and after verify, by what each request teaches": Online(policy, ROWS[-1]),
    }
    return {name: replayed(tuned, one, batch_size) for name, one in schedules.items()}


def acceptance(recordings: Sequence[Recording], shape: str, num_nodes: int) -> float:
    """Draft tokens accepted per step, at a budget."""
    done = replay(recordings, Fixed(num_nodes, shape), _ANY_STEP_TAKES_1)
    return done.accepted / done.steps


def policy_by_prompt(tuned: Tuned, prompts: Sequence[Prompt]) -> dict[str, float]:
    """The policy's speed-up on each prompt at batch 1, the median of the repeats; empty when
    batch 1 was not tuned for."""
    trials = tuned.last.get(1, ())
    if not trials:
        return {}
    return {
        prompt.name: median(trial.ratios[index] for trial in trials)
        for index, prompt in enumerate(prompts)
    }


def overall(trials: Sequence[Trial], indices: Sequence[int] | None = None) -> float:
    """Speed-up over all groups of the trials, or over some; each group counts by its time."""
    ours = plain = 0.0
    for trial in trials:
        for index in range(len(trial.ratios)) if indices is None else indices:
            plain += trial.plain_by_group[index]
            ours += trial.plain_by_group[index] / trial.ratios[index]
    return plain / ours
