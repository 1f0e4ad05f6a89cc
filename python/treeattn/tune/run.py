# SPDX-License-Identifier: Apache-2.0
"""A whole tuning run: measure, search, decide; every part is kept as soon as it is known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treeattn.cost_file import CostTables
from treeattn.decoder import Decoder, Drafter
from treeattn.decoder.drafters import DraftsByLevel
from treeattn.schedule import Online, Policy, Verdict
from treeattn.schedule.recording import Recording, taught
from treeattn.schedule.replay import replay
from treeattn.tune.costs import draft_costs, step_costs
from treeattn.tune.record import record
from treeattn.tune.restore import restore_ms
from treeattn.tune.search import Found, most_trials, search
from treeattn.tune.state import Measured
from treeattn.tune.trials import EVERY_LEVEL, Setting, Trial, try_setting

RECORDED_NODES = 48  # of the drafts that replays choose from
ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)
CONTEXTS = (128, 512)
TEMPERATURES = (0.0, 0.2, 0.6, 1.0)
POLICY_REPEATS = 3  # of the last word on the policy


@dataclass(frozen=True)
class Prompt:
    """kind: "copy", "mixed" or "free": how much of the answer is expected to repeat the prompt."""

    name: str
    kind: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """What to tune for.

    drafter: its name in the policy. max_new_tokens: of each prompt. max_step_ms: no step may take
    longer; None: no bound. about: model, machine and so on, for the policy file.
    """

    drafter: str
    batch_sizes: tuple[int, ...]
    max_new_tokens: int
    max_step_ms: float | None
    seed: int
    about: Mapping[str, Any]

    def __post_init__(self) -> None:
        """A run takes minutes: what is wrong shows before it."""
        sizes = self.batch_sizes
        if not sizes or min(sizes) < 1 or max(sizes) > ROWS[-1]:
            raise ValueError(f"batch_sizes must be in [1, {ROWS[-1]}], got {sizes}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be >= 1, got {self.max_new_tokens}")
        if self.max_step_ms is not None and not self.max_step_ms > 0:
            raise ValueError(f"max_step_ms must be > 0, got {self.max_step_ms}")


@dataclass(frozen=True)
class Tuned:
    """What a report needs. recordings: by temperature. last: the policy's own trials, by batch
    size, each repeated; every_level: as many with drafts that are not stopped on their way, for
    batch sizes at which a drafter that could be stopped is asked at all."""

    policy: Policy
    found: dict[int, Found]
    last: dict[int, tuple[Trial, ...]]
    every_level: dict[int, tuple[Trial, ...]]
    recordings: dict[float, tuple[Recording, ...]]
    restore: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Tuner:
    """Runs a task; what `measured` already holds is not measured again.

    drafter: an object whose drafts depend on the requests' tokens only. advance: see `progress`.
    """

    decoder: Decoder
    drafter: Drafter
    prompts: Sequence[Prompt]
    task: Task
    measured: Measured
    advance: Callable[[str], None] = lambda text: None

    @property
    def most_parts(self) -> int:
        """An upper bound of the calls of `advance`."""
        each = most_trials() + POLICY_REPEATS * (2 if self._stops_drafts else 1)
        return (
            2
            + len(_batches(self.task.batch_sizes))
            + len(TEMPERATURES)
            + each * len(self.task.batch_sizes)
        )

    def run(self) -> Tuned:
        costs = self._costs()
        recordings = {value: self._recordings(value) for value in TEMPERATURES}
        learned = taught(recordings[0.0])
        deepest = _deepest(recordings[0.0])
        found = {size: self._search(size, costs, deepest) for size in self.task.batch_sizes}
        policy = self._policy(costs, learned, found)
        verdicts = {
            size: self._with_room(policy, size, deepest, recordings[0.0])
            for size in policy.verdicts
        }
        policy = replace(policy, verdicts=verdicts)
        last = {size: self._last(size, policy) for size in self.task.batch_sizes}
        restore = self._part(
            "restore", "timing the way back of the KV cache", lambda: restore_ms(self.decoder)
        )
        stopped, every_level = (
            {size: trials[shape] for size, trials in last.items() if shape in trials}
            for shape in ("policy", EVERY_LEVEL)
        )
        return Tuned(policy, found, stopped, every_level, recordings, restore)

    def _part(self, key: str, text: str, measure: Callable[[], Any]) -> Any:
        self.advance(text if key not in self.measured else f"{text}: known")
        return self.measured.get(key, measure)

    def _costs(self) -> CostTables:
        # Positions end somewhere, and the timed steps go on from these contexts.
        most = self.decoder.config.max_position // 2
        contexts = sorted({min(context, most) for context in CONTEXTS})
        steps = {size: self._steps(size, contexts) for size in _batches(self.task.batch_sizes)}
        draft, about = self._part(
            "drafts",
            "timing the drafter",
            lambda: draft_costs(
                self.decoder, self.drafter, [prompt.tokens for prompt in self.prompts[:3]]
            ),
        )
        tables = {
            size: CostTables.from_json(
                {**found, "draft": draft, "about": {**found["about"], "draft": about}}
            )
            for size, found in steps.items()
        }
        return replace(tables[1], batches=tables if len(tables) > 1 else {})

    def _steps(self, batch_size: int, contexts: Sequence[int]) -> dict[str, Any]:
        """Times of steps of so many requests, as `CostTables.to_json` has them."""
        rows = sorted({batch_size, *(count for count in ROWS if count > batch_size)})
        found: dict[str, Any] = self._part(
            f"steps, batch {batch_size}",
            f"timing steps of {rows[0]} to {rows[-1]} rows, batch {batch_size}",
            lambda: step_costs(
                self.decoder, rows=rows, contexts=contexts, batch_size=batch_size
            ).to_json(),
        )
        return found

    def _recordings(self, temperature: float) -> tuple[Recording, ...]:
        task = self.task
        lines = self._part(
            f"recording at temperature {temperature}",
            f"recording drafts at temperature {temperature}",
            lambda: [
                recording.to_json()
                for recording in record(
                    self.decoder,
                    self.drafter,
                    [prompt.tokens for prompt in self.prompts],
                    [prompt.name for prompt in self.prompts],
                    num_nodes=RECORDED_NODES,
                    max_new_tokens=task.max_new_tokens,
                    temperature=temperature,
                    seed=task.seed,
                ).recordings
            ],
        )
        return tuple(Recording.from_json(line) for line in lines)

    def _search(self, batch_size: int, costs: CostTables, deepest: int) -> Found:
        def fits(setting: Setting) -> bool:
            return self._step_ms(batch_size, setting, costs, deepest) <= self._most_ms

        def trial(setting: Setting) -> Trial:
            return self._trial(batch_size, setting, f"batch {batch_size}: {setting}")

        return search(batch_size, trial, fits=fits)

    @property
    def _most_ms(self) -> float:
        """The latency bound; what costs no finite time was not measured, and is above any."""
        bound = self.task.max_step_ms
        return sys.float_info.max if bound is None else bound

    def _step_ms(self, batch_size: int, setting: Setting, costs: CostTables, deepest: int) -> float:
        """What the longest step takes: each draft as large and as deep as it may be."""
        costs = costs.at(batch_size)
        tables = costs.costs
        (step_ms,) = tables.after_draft([batch_size * setting.num_nodes], costs.max_context)
        levels = min(setting.num_nodes - 1, deepest)
        if tables.draft is None or levels == 0:
            return float(step_ms)
        width = batch_size if setting.shape == "chain" else batch_size * setting.num_nodes
        return float(step_ms + tables.draft.along(np.arange(1, levels + 1), width).sum())

    def _trial(
        self, batch_size: int, setting: Setting, key: str, policy: Policy | None = None
    ) -> Trial:
        data = self._part(
            key,
            key,
            lambda: try_setting(
                self.decoder,
                self.drafter,
                setting,
                [prompt.tokens for prompt in self.prompts],
                batch_size=batch_size,
                max_new_tokens=self.task.max_new_tokens,
                policy=policy,
            ).to_json(),
        )
        return Trial.from_json(data)

    @property
    def _stops_drafts(self) -> bool:
        return isinstance(self.drafter, DraftsByLevel)

    def _last(self, batch_size: int, policy: Policy) -> dict[str, tuple[Trial, ...]]:
        """The policy's own trials by the setting's shape, in turns."""
        verdict = policy.verdict(batch_size)
        shapes = ["policy"]
        if self._stops_drafts and verdict.shape != "off":
            shapes.append(EVERY_LEVEL)
        turns = [
            {
                shape: self._trial(
                    batch_size,
                    Setting(shape, verdict.num_nodes),
                    f"batch {batch_size}: {shape}, repeat {repeat + 1}",
                    policy,
                )
                for shape in shapes
            }
            for repeat in range(POLICY_REPEATS)
        ]
        return {shape: tuple(turn[shape] for turn in turns) for shape in shapes}

    def _policy(
        self, costs: CostTables, learned: Mapping[str, Any], found: Mapping[int, Found]
    ) -> Policy:
        noise = {str(size): round(one.noise, 4) for size, one in found.items()}
        return Policy(
            verdicts={size: _verdict(one) for size, one in found.items()},
            costs=costs,
            drafter=self.task.drafter,
            learned=learned,
            max_step_ms=self.task.max_step_ms,
            about={
                **self.task.about,
                "seed": self.task.seed,
                "noise": noise,
                "repeatability": "The seed fixes drafts and tokens. Verdicts come from timings: "
                "settings that lie within the noise of each other may change places.",
            },
        )

    def _with_room(
        self, policy: Policy, batch_size: int, deepest: int, recordings: Sequence[Recording]
    ) -> Verdict:
        """The verdict with the budget with which the policy replays fastest: it takes what pays of
        a draft, so more to choose from can help where requests differ. Under a latency bound only
        budgets that keep it when all of them is taken."""
        verdict = policy.verdicts[batch_size]
        if verdict.shape == "off":
            return verdict

        def speed(budget: Verdict) -> float:
            done = replay(
                recordings,
                Online(replace(policy, verdicts={batch_size: budget}), ROWS[-1]),
                policy.costs,
                batch_size=batch_size,
            )
            return done.tokens_per_second

        def fits(num_nodes: int) -> bool:
            setting = Setting(verdict.shape, num_nodes)
            keeps = (
                self.task.max_step_ms is None
                or self._step_ms(batch_size, setting, policy.costs, deepest) <= self._most_ms
            )
            return num_nodes <= RECORDED_NODES and keeps

        larger = [factor * verdict.num_nodes for factor in (2, 3)]
        budgets = [verdict, *(replace(verdict, num_nodes=n) for n in larger if fits(n))]
        return max(budgets, key=speed)


def _batches(batch_sizes: Sequence[int]) -> list[int]:
    """Those at which steps are timed. As its requests end a batch goes through all sizes below;
    between powers of two the next larger one stands for them (`CostTables.at`)."""
    powers = (1 << exponent for exponent in range(max(batch_sizes).bit_length()))
    return sorted({*batch_sizes, *powers})


def _verdict(found: Found) -> Verdict:
    best = found.verdict
    if best is None:
        return Verdict("off", 1, draft_ms=0.0, accepted=0.0, speedup=1.0)
    return Verdict(
        best.setting.shape,
        best.setting.num_nodes,
        draft_ms=round(1000 * best.seconds["draft"] / best.rounds, 4),
        accepted=round(best.accepted / best.steps, 4),
        speedup=round(best.speedup, 4),
    )


def _deepest(recordings: Sequence[Recording]) -> int:
    """Levels of the deepest draft."""
    drafts = (draft for recording in recordings for draft in recording.drafts)
    return max(
        (int(draft.depths.max(initial=0)) for draft in drafts if draft is not None), default=0
    )
