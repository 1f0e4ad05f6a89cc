# SPDX-License-Identifier: Apache-2.0
"""Decoding again what was recorded, against any cost table: no model, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from treeattn.cost import StepCosts
from treeattn.cost_file import CostTables
from treeattn.schedule.online import Schedule
from treeattn.schedule.prune import fit, likeliest_chain
from treeattn.schedule.recording import Recording
from treeattn.tree import DraftTree

PHASES = ("draft", "verify", "accept", "remap")


class NotMeasured(ValueError):
    """A step whose time the cost tables do not know."""


@dataclass
class Replayed:
    """What a replay took. tokens: emitted. steps: of the requests; rounds: of the batch. accepted:
    draft tokens. ms: in all, and by phase."""

    tokens: int = 0
    steps: int = 0
    rounds: int = 0
    accepted: int = 0
    rows: int = 0
    ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def add(self, other: Replayed) -> None:
        self.tokens += other.tokens
        self.steps += other.steps
        self.rounds += other.rounds
        self.accepted += other.accepted
        self.rows += other.rows
        for phase, ms in other.ms.items():
            self.ms[phase] += ms

    @property
    def total_ms(self) -> float:
        return sum(self.ms.values())

    @property
    def tokens_per_second(self) -> float:
        return 1000.0 * self.tokens / self.total_ms if self.tokens else 0.0


@dataclass(eq=False)
class _Run:
    """One recording on its way: a request as `Schedule` sees it.

    drafts: what its drafts came to, by position and budget; runs of one recording share it.
    """

    seq: int
    recording: Recording
    drafts: dict[tuple[int, int, str], DraftTree]
    at: int = 0

    @property
    def context(self) -> int:
        return self.recording.context + self.at

    @property
    def room(self) -> int:
        return len(self.recording.tokens) - self.at


def replay(
    recordings: Iterable[Recording],
    schedule: Schedule,
    costs: CostTables,
    *,
    batch_size: int = 1,
    refill: bool = False,
) -> Replayed:
    """Decode the recordings in turn, `batch_size` at a time, as `schedule` says.

    Tokens are those that were recorded; time is what `costs` says for as many requests as the step
    has. Contexts longer than any that was measured cost what that did. A draft smaller than the one
    that was recorded is taken to be what `prune.fit` leaves of it, a chain its likeliest path.
    refill: the batch stays full, as on a busy server: the recordings begin again until each of them
    has been decoded once, and the tokens of those that began again count as well.
    Raises NotMeasured, a ValueError, where `costs` does not know what a step takes.
    """
    queue = [recording for recording in recordings if recording.tokens]
    drafts: list[dict[tuple[int, int, str], DraftTree]] = [{} for _ in queue]
    running: list[_Run] = []
    begun, left = 0, len(queue)
    total = Replayed()
    while left > 0:
        while len(running) < batch_size and (refill or begun < len(queue)):
            which = begun % len(queue)
            running.append(_Run(begun, queue[which], drafts[which]))
            begun += 1
        _step(running, schedule, costs.at(len(running)), total)
        for run in [run for run in running if run.room <= 0]:
            running.remove(run)
            schedule.release(run)
            left -= run.seq < len(queue)
    return total


def _step(
    runs: Sequence[_Run],
    schedule: Schedule,
    tables: CostTables,
    total: Replayed,
) -> None:
    costs = tables.costs
    num_nodes, shape = schedule.budget(len(runs))
    asked = [ask and num_nodes > 1 for ask in schedule.ask(runs)]  # a root needs no drafter
    drafts = [
        _draft(run, num_nodes, shape) if ask else _root()
        for run, ask in zip(runs, asked, strict=True)
    ]
    draft_ms = _draft_ms(costs, [d for d, ask in zip(drafts, asked, strict=True) if ask])
    trees = schedule.cut(runs, drafts)
    rows = sum(map(len, trees))
    context = min(max(1, *(run.context for run in runs)), tables.max_context)
    took = {"draft": draft_ms, "verify": costs.verify(rows, context)}
    for phase, table in (("accept", costs.accept), ("remap", costs.remap)):
        if table is not None:
            took[phase] = table(rows)
    for phase, ms in took.items():
        if ms == math.inf:
            raise NotMeasured(
                f"costs must know {phase} of {rows} rows at context {context}, got inf"
            )
        total.ms[phase] += ms
    total.rows += rows
    total.rounds += 1
    for run, tree in zip(runs, trees, strict=True):
        following = run.recording.tokens[run.at : run.at + len(tree)]
        accepted = len(tree.follow(following)) - 1
        emitted = following[: accepted + 1]
        total.steps += 1
        total.accepted += min(accepted, len(emitted) - 1)
        total.tokens += len(emitted)
        schedule.observe(run, emitted)
        run.at += len(emitted)


def _draft(run: _Run, num_nodes: int, shape: str) -> DraftTree:
    """The part of the recorded draft that fits the budget and the tokens left."""
    key = (run.at, num_nodes, shape)
    if key not in run.drafts:
        run.drafts[key] = _fit(run, num_nodes, shape)
    return run.drafts[key]


def _fit(run: _Run, num_nodes: int, shape: str) -> DraftTree:
    tree = run.recording.drafts[run.at]
    if tree is None:
        return _root()
    if shape == "chain":
        tree = likeliest_chain(tree)
    return fit(tree, num_nodes, run.room)


def _draft_ms(costs: StepCosts, drafts: Sequence[DraftTree]) -> float:
    """Every level that a draft has was asked for once, for all of them together."""
    if costs.draft is None or not drafts:
        return 0.0
    levels = max(1, max(int(tree.depths.max(initial=0)) for tree in drafts))
    total = 0.0
    for level in range(1, levels + 1):
        width = sum(int(np.count_nonzero(tree.depths == level - 1)) for tree in drafts)
        total += float(costs.draft.along([level], [max(1, width)])[0])
    return total


def _root() -> DraftTree:
    return DraftTree([-1], [-1], [0.0])
