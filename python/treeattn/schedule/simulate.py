# SPDX-License-Identifier: Apache-2.0
"""Fixed settings and the online policy, side by side on the same recordings and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from treeattn.cost_file import CostTables
from treeattn.schedule.online import Fixed, Online, Schedule
from treeattn.schedule.policy import Policy, Verdict
from treeattn.schedule.recording import Recording, taught
from treeattn.schedule.replay import NotMeasured, Replayed, replay
from treeattn.tree import DraftTree

TRIAL_SHARE = 4  # one in so many recordings is what a policy is made from
HOPE = 2.0  # the speed-up that a policy is tried with


@dataclass(frozen=True)
class Setting:
    """A fixed way to draft: "plain", "chain" or "tree".

    num_nodes: of a request's draft, the root counted. max_depth: levels below it; None: any.
    """

    shape: str
    num_nodes: int
    max_depth: int | None = None

    @property
    def name(self) -> str:
        if self.shape == "plain":
            return "plain"
        if self.shape == "chain":
            return f"chain {self.num_nodes - 1}"
        return f"tree {self.num_nodes}" + ("" if self.max_depth is None else f"x{self.max_depth}")

    @property
    def schedule(self) -> Schedule:
        return Fixed(self.num_nodes, "chain" if self.shape == "chain" else "tree")


PLAIN = Setting("plain", 1)


@dataclass(frozen=True)
class Outcome:
    """What became of a setting: `replayed`, or why it could not be."""

    name: str
    shape: str
    replayed: Replayed | None
    why_not: str = ""

    @property
    def tokens_per_second(self) -> float:
        return 0.0 if self.replayed is None else self.replayed.tokens_per_second

    def numbers(self, plain: Outcome) -> dict[str, Any]:
        """Plain data; `rows_per_step` and `tokens_per_step` are of one request."""
        data: dict[str, Any] = {"setting": self.name, "shape": self.shape}
        run = self.replayed
        if run is None:
            return data | {"why_not": self.why_not}
        return data | {
            "tokens_per_second": run.tokens_per_second,
            "speedup": run.tokens_per_second / plain.tokens_per_second,
            "rows_per_step": run.rows / run.steps,
            "tokens_per_step": run.tokens / run.steps,
            "tokens": run.tokens,
            "ms": run.total_ms,
            "share": {phase: ms / run.total_ms for phase, ms in run.ms.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """All settings at one batch size. fixed: plain decoding comes first."""

    batch_size: int
    fixed: tuple[Outcome, ...]
    online: Outcome
    policy: Policy

    @property
    def plain(self) -> Outcome:
        return self.fixed[0]

    def best(self, *shapes: str) -> Outcome:
        """The fastest fixed setting of these shapes, in hindsight; of all without any."""
        among = [outcome for outcome in self.fixed if not shapes or outcome.shape in shapes]
        return max(among, key=lambda outcome: outcome.tokens_per_second, default=self.plain)

    def speedup(self, outcome: Outcome) -> float:
        return outcome.tokens_per_second / self.plain.tokens_per_second

    @property
    def regret(self) -> float:
        """By what part of the best fixed setting's tokens per second the online policy is slower;
        below 0 where it is faster."""
        return 1.0 - self.online.tokens_per_second / self.best().tokens_per_second


def compare(
    recordings: Sequence[Recording],
    tables: CostTables,
    settings: Sequence[Setting],
    *,
    batch_size: int,
    policy: Policy | None = None,
) -> Comparison:
    """Decode `recordings` with each of `settings` and with `policy`; the batch is always full.

    policy: as it stands, its own costs decide; None: `trial_policy`.
    Contexts longer than the tables know cost what the longest one does.
    Raises ValueError for no recordings, or where the tables do not know plain decoding.
    """
    if not any(recording.tokens for recording in recordings):
        raise ValueError("recordings must hold a token at least, got none")
    shallow = {depth: _shallow(recordings, depth) for depth in {s.max_depth for s in settings}}
    plain = _replay(recordings, PLAIN.schedule, tables, batch_size)
    fixed = [Outcome(PLAIN.name, PLAIN.shape, plain)]
    fixed += [_run(s, shallow[s.max_depth], tables, batch_size) for s in settings]
    drafts = recordings
    if policy is None:
        best, policy = trial_policy(recordings, tables, settings, batch_size=batch_size)
        drafts = shallow[best.max_depth]
    online = _replay(drafts, Online(policy), tables, batch_size)
    return Comparison(batch_size, tuple(fixed), Outcome("online", "online", online), policy)


def trial_policy(
    recordings: Sequence[Recording],
    tables: CostTables,
    settings: Sequence[Setting],
    *,
    batch_size: int,
) -> tuple[Setting, Policy]:
    """The tree or chain that serves an online policy best on the first quarter of the recordings.

    Sizes of each shape grow until one serves it worse than the one before. What the policy promises
    is what it brought there, and what it has learned of acceptance is from there too. Where it was
    no faster than plain decoding, nothing is drafted. Ties go to trees.
    Raises ValueError where the tables know none of the settings.
    """
    trial = recordings[: -(-len(recordings) // TRIAL_SHARE)]
    learned = taught(trial)
    plain = _replay(trial, PLAIN.schedule, tables, batch_size)
    found: list[tuple[Setting, Policy]] = []
    for shape in ("tree", "chain"):
        best: tuple[Setting, Policy] | None = None
        for setting in sorted(settings, key=lambda setting: setting.num_nodes):
            if setting.shape != shape:
                continue
            drafts = _shallow(trial, setting.max_depth)
            run = _run(setting, drafts, tables, batch_size).replayed
            if run is None:
                continue
            draft_ms = run.ms["draft"] * batch_size / run.steps
            hopeful = Verdict(shape, setting.num_nodes, draft_ms, run.accepted / run.steps, HOPE)
            policy = Policy({batch_size: hopeful}, tables, "recorded", learned)
            run = _replay(drafts, Online(policy), tables, batch_size)
            verdict = replace(
                hopeful,
                accepted=run.accepted / run.steps,
                speedup=run.tokens_per_second / plain.tokens_per_second,
            )
            if best is not None and verdict.speedup < best[1].verdict(batch_size).speedup:
                break
            if verdict.speedup <= 1.0:
                verdict = Verdict("off", 1, 0.0, 0.0, 1.0)
            best = setting, replace(policy, verdicts={batch_size: verdict})
        if best is not None:
            found.append(best)
    if not found:
        raise ValueError(
            f"costs must know a setting at batch size {batch_size}, got none of "
            + ", ".join(setting.name for setting in settings)
        )
    return max(found, key=lambda entry: entry[1].verdict(batch_size).speedup)


def _run(
    setting: Setting, recordings: Sequence[Recording], tables: CostTables, batch_size: int
) -> Outcome:
    try:
        replayed = _replay(recordings, setting.schedule, tables, batch_size)
    except NotMeasured as error:
        return Outcome(setting.name, setting.shape, None, str(error))
    return Outcome(setting.name, setting.shape, replayed)


def _replay(
    recordings: Sequence[Recording], schedule: Schedule, tables: CostTables, batch_size: int
) -> Replayed:
    return replay(
        recordings,
        schedule,
        tables,
        batch_size=batch_size,
        refill=True,
    )


def _shallow(recordings: Sequence[Recording], max_depth: int | None) -> Sequence[Recording]:
    """The recordings with drafts of so many levels."""
    if max_depth is None:
        return recordings
    return [
        Recording(
            recording.name,
            recording.context,
            recording.tokens,
            tuple(_cut(tree, max_depth) for tree in recording.drafts),
        )
        for recording in recordings
    ]


def _cut(tree: DraftTree | None, max_depth: int) -> DraftTree | None:
    if tree is None or not np.any(tree.depths > max_depth):
        return tree
    return tree.keep(tree.depths <= max_depth)
