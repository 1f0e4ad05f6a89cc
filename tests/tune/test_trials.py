# SPDX-License-Identifier: Apache-2.0
"""A setting against plain decoding: what is counted, in which order, and what is a gain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.eagle import related_decoder
from support.tuning import Clock, TimedSuffix, copying_prompts
from treeattn.cost_file import CostTables
from treeattn.decoder import Decoder, Generation, Stats, SuffixDraft
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
    """A decoder that keeps what its decoder's calls returned."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.calls: list[tuple[list[list[int]], dict[str, Any], list[Generation]]] = []

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Generation]:
        outs = self.decoder.generate(prompts, **options)
        self.calls.append(([list(prompt) for prompt in prompts], options, outs))
        return outs


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
def test_counts_are_those_of_generate(setting: Setting, batch_size: int) -> None:
    prompts = copying_prompts()
    trial, listening = tried(setting, prompts, batch_size)
    groups = [prompts[i : i + batch_size] for i in range(0, 3, batch_size)]
    assert [call[0] for call in listening.calls] == [g for group in groups for g in (group, group)]

    # Plain decoding goes first in one group, second in the next.
    ours, plain = [], []
    for index in range(len(groups)):
        pair = [outs for _, _, outs in listening.calls[2 * index : 2 * index + 2]]
        plain.append(pair.pop(index % 2))
        ours += pair
    outs = [out for group in ours for out in group]
    assert trial.tokens == sum(len(out.tokens) for out in outs) == 30
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
def test_what_is_asked_of_generate(setting: Setting) -> None:
    _, listening = tried(setting, copying_prompts(), 1)
    asked = [options for _, options, _ in listening.calls]
    assert all(options["max_new_tokens"] == 10 for options in asked)
    names = [options["drafter"] == "none" for options in asked]
    if setting.shape == "off":
        assert names == [True] * 6
        return
    assert names == [True, False, False, True, True, False]
    ours = asked[1]
    if setting.shape == "policy":
        assert ours["policy"] is POLICY and "num_nodes" not in ours
    else:
        assert (ours["num_nodes"], ours["shape"]) == (setting.num_nodes, setting.shape)
        assert "policy" not in ours


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


class Said:
    """Says what it is told: first of plain decoding, then of the setting."""

    def __init__(self, plain: list[list[int]], ours: list[list[int]], seconds: list[float]) -> None:
        self._outs = {True: plain, False: ours}
        self._seconds = dict(zip((True, False), seconds, strict=True))

    def generate(
        self, prompts: Sequence[Sequence[int]], *, drafter: Any, **options: Any
    ) -> list[Generation]:
        is_plain = drafter == "none"
        outs = []
        for tokens in self._outs[is_plain]:
            stats = Stats(steps=len(tokens), drafted=0, accepted=[0] * len(tokens))
            stats.seconds |= {"prefill": 100.0, "verify": self._seconds[is_plain]}
            outs.append(Generation(tokens, "", "length", None, stats))
        return outs


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
