# SPDX-License-Identifier: Apache-2.0
"""A setting against plain decoding: what is counted, in which order, and what is a gain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from support.eagle import related_decoder
from support.tuning import Clock, TimedSuffix, copying_prompts
from treeattn.cost_file import CostTables
from treeattn.decoder import Decoder, Generation, Options, Run, Stats, SuffixDraft
from treeattn.decoder.engine import PREFILL_BUDGET
from treeattn.schedule import Policy, Verdict
from treeattn.schedule.replay import PHASES
from treeattn.tune.trials import Setting, Trial, try_setting

SETTINGS = [Setting("chain", 6), Setting("tree", 6), Setting("off", 1), Setting("policy", 6)]
POLICY = Policy(
    {4: Verdict("tree", 6, draft_ms=0.001, accepted=1.0, speedup=1.5)},
    CostTables(tuple((rows, 512, 1.0 + rows / 100) for rows in (1, 2, 4, 8, 16, 32))),
    "suffix",
)


class Listening:
    """A decoder that keeps the runs it began. behind: before every step that was taken while the
    other run of the pair went on, what either had emitted, the one that took it first. steps: taken
    by each run."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.calls: list[tuple[list[list[int]], Options, Run]] = []
        self.behind: list[tuple[int, int]] = []
        self.steps: Counter[int] = Counter()

    def start(self, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Run:
        run = self.decoder.start(prompts, options, **more)
        step, index = run.step, len(self.calls)

        def spied() -> None:
            self.steps[index] += 1
            other = self.calls[index ^ 1][2]
            if other.busy:
                self.behind.append((run.num_tokens, other.num_tokens))
            step()

        run.step = spied  # type: ignore[method-assign]
        self.calls.append(([list(prompt) for prompt in prompts], options, run))
        return run


def tried(
    setting: Setting, prompts: Sequence[Sequence[int]], batch_size: int
) -> tuple[Trial, Listening]:
    listening = Listening(related_decoder())
    trial = try_setting(
        listening,  # type: ignore[arg-type]
        SuffixDraft(),
        setting,
        prompts,
        batch_size=batch_size,
        max_new_tokens=10,
        policy=POLICY if setting.shape == "policy" else None,
    )
    return trial, listening


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_counts_are_those_of_the_runs(setting: Setting, batch_size: int) -> None:
    prompts = copying_prompts()
    trial, listening = tried(setting, prompts, batch_size)
    again = prompts[: -len(prompts) % batch_size]  # fill the last group
    groups = [(prompts + again)[i : i + batch_size] for i in range(0, 3, batch_size)]
    assert [call[0] for call in listening.calls] == [g for group in groups for g in (group, group)]

    plain, ours = ([run.results() for _, _, run in listening.calls[i::2]] for i in (0, 1))
    outs = [out for group in ours for out in group]
    assert trial.tokens == sum(len(out.tokens) for out in outs) == 10 * len(prompts + again)
    assert trial.steps == sum(out.stats.steps for out in outs)
    assert trial.rounds == sum(max(out.stats.steps for out in group) for group in ours)
    assert trial.drafted == sum(out.stats.drafted for out in outs)
    assert trial.accepted == sum(sum(out.stats.accepted) for out in outs)
    assert (trial.accepted > 0) == (setting.shape != "off")
    assert trial.tokens == trial.steps + trial.accepted
    assert trial.identical and (trial.setting, trial.batch_size) == (setting, batch_size)
    for phase in PHASES:
        assert trial.seconds[phase] == pytest.approx(sum(o.stats.seconds[phase] for o in outs))
    for at, group in enumerate(plain):
        assert trial.plain_by_group[at] == pytest.approx(
            sum(out.stats.seconds[phase] for out in group for phase in PHASES)
        )


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_what_is_asked_of_the_decoder(setting: Setting) -> None:
    _, listening = tried(setting, copying_prompts(), 1)
    asked = [options for _, options, _ in listening.calls]
    assert all(options.max_new_tokens == 10 for options in asked)
    names = [options.drafter == "none" for options in asked]
    if setting.shape == "off":
        assert names == [True] * 6
        return
    assert names == [True, False] * 3
    ours = asked[1]
    assert ours.policy is (POLICY if setting.shape == "policy" else None)
    if setting.shape != "policy":
        assert (ours.num_nodes, ours.shape) == (setting.num_nodes, setting.shape)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_whoever_has_emitted_less_takes_the_next_step(batch_size: int) -> None:
    """So both go through the same moments, however many tokens a step of theirs emits."""
    _, listening = tried(Setting("chain", 6), copying_prompts(), batch_size)
    assert all(ours <= other for ours, other in listening.behind)
    assert len({ours for ours, _ in listening.behind}) > 3


def test_all_prompts_are_read_before_the_first_step() -> None:
    """Else a batch would begin with one request, and fill up slowly."""
    prompts = [(3 * prompt)[:200] for prompt in copying_prompts()] * 2
    assert sum(map(len, prompts)) > 2 * PREFILL_BUDGET
    trial, listening = tried(Setting("chain", 2), prompts, len(prompts))
    assert listening.steps == {0: 10, 1: trial.rounds}


def test_speedup_and_typical_under_a_scripted_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 8 ticks whatever its rows, and a level of drafts takes one."""
    decoder, prompts = related_decoder(), copying_prompts()[:2]
    clock = Clock(monkeypatch)
    clock.script(verify=lambda rows, context: 6, accept=1, remap=1)
    trial = try_setting(
        decoder,
        TimedSuffix(clock, 1),
        Setting("chain", 2),
        prompts,
        batch_size=1,
        max_new_tokens=10,
    )
    assert trial.rounds == trial.steps < 20
    expected = {"draft": 1, "verify": 6, "accept": 1, "remap": 1}
    assert trial.seconds == {phase: t * trial.steps / 8 for phase, t in expected.items()}
    assert trial.plain_by_group == (10.0, 10.0)
    assert trial.speedup == 20.0 / (trial.steps * 9 / 8)
    assert trial.typical == pytest.approx(sum(trial.ratios) / 2)
    assert trial.tokens_per_second == 20 / (trial.steps * 9 / 8)
    assert trial.tokens_per_step == 20 / trial.steps


class Ended(nullcontext[Any]):
    """A run that has nothing left to do."""

    busy = False

    def __init__(self, outs: list[Generation]) -> None:
        super().__init__(self)
        self.results = lambda: outs


class Said:
    """Says what it is told: of plain decoding, and of the setting."""

    def __init__(self, plain: list[list[int]], ours: list[list[int]], seconds: list[float]) -> None:
        self._outs = {True: plain, False: ours}
        self._seconds = dict(zip((True, False), seconds, strict=True))

    def start(self, prompts: Sequence[Sequence[int]], options: Options, **more: Any) -> Ended:
        is_plain = options.drafter == "none"
        outs = []
        for tokens in self._outs[is_plain]:
            stats = Stats(steps=len(tokens), drafted=0, accepted=[0] * len(tokens))
            stats.seconds |= {"prefill": 100.0, "verify": self._seconds[is_plain]}
            outs.append(Generation(tokens, "", "length", None, stats))
        return Ended(outs)


def said(plain: list[list[int]], ours: list[list[int]], seconds: list[float]) -> Trial:
    return try_setting(
        Said(plain, ours, seconds),  # type: ignore[arg-type]
        SuffixDraft(),
        Setting("tree", 4),
        [[1]] * len(ours),
        batch_size=len(ours),
        max_new_tokens=4,
    )


def test_identical_is_about_every_token_of_every_request() -> None:
    assert said([[1, 2], [3, 4]], [[1, 2], [3, 4]], [1.0, 1.0]).identical
    assert not said([[1, 2], [3, 4]], [[1, 2], [3, 5]], [1.0, 1.0]).identical
    assert not said([[1, 2], [3, 4]], [[1, 2], [3]], [1.0, 1.0]).identical
    assert not said([[1, 2], [3, 4]], [[0, 2], [3, 4]], [1.0, 1.0]).identical


def test_fewer_tokens_in_less_time_are_no_gain() -> None:
    """Half the tokens in half the time: as fast as plain decoding. Prefill does not count."""
    trial = said([[1, 2, 3, 4]], [[1, 2]], [8.0, 4.0])
    assert trial.speedup == trial.typical == 1.0
    assert trial.plain_by_group == (4.0,) and trial.ratios == (1.0,)
    assert said([[1, 2]], [[1, 2]], [8.0, 4.0]).speedup == 2.0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_json_round_trip(setting: Setting) -> None:
    trial, _ = tried(setting, copying_prompts()[:2], 1)
    again = Trial.from_json(json.loads(json.dumps(trial.to_json())))
    assert again == trial and type(again.ratios) is tuple and again.setting == setting


def test_names_of_settings() -> None:
    assert [str(setting) for setting in SETTINGS] == ["chain-6", "tree-6", "off", "policy"]
