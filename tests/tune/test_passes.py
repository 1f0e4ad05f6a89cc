# SPDX-License-Identifier: Apache-2.0
"""What stopping drafts on their way saves: counted, tried both ways, and reported."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.eagle import related_decoder, save_head
from support.tuning import TASK, Clock, FinishedRun, copying_prompts, flat, tuner
from torch import Tensor
from treeattn.cost_file import CostTables
from treeattn.decoder.eagle_head import EagleHead
from treeattn.schedule import Policy, Verdict
from treeattn.tune.report import write_report
from treeattn.tune.run import POLICY_REPEATS
from treeattn.tune.trials import EVERY_LEVEL, Setting, Trial, try_setting

LEVELS = 4
# The first two levels are free; the third costs more than any number of tokens.
POLICY = Policy(
    {4: Verdict("tree", 8, draft_ms=0.0, accepted=1.0, speedup=1.5)},
    CostTables(((256, 512, 10.0),), draft=((2, 256, 1e-9), (99, 256, 1e6))),
    "eagle",
)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the head is asked for laws."""
    count: Counter[str] = Counter()
    log_probs = EagleHead.log_probs

    def spy(head: EagleHead, features: Tensor) -> Tensor:
        count["passes"] += 1
        return log_probs(head, features)

    monkeypatch.setattr(EagleHead, "log_probs", spy)
    return count


def tried(folder: Path, shape: str, batch_size: int = 1) -> Trial:
    decoder = related_decoder(num_blocks=256)
    drafter = decoder.load_draft_head(save_head(folder), top_k=3, depth=LEVELS, num_blocks=256)
    return try_setting(
        decoder,
        drafter,
        Setting(shape, 8),
        copying_prompts(),
        batch_size=batch_size,
        max_new_tokens=10,
        policy=POLICY if Setting(shape, 8).follows_policy else None,
    )


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("shape", ["tree", "chain", "policy", EVERY_LEVEL])
def test_passes_are_those_of_the_head(
    shape: str, batch_size: int, tmp_path: Path, passes: Counter[str]
) -> None:
    trial = tried(tmp_path, shape, batch_size)
    assert trial.passes == passes["passes"] > 0
    assert trial.identical and Trial.from_json(trial.to_json()) == trial


def test_levels_that_do_not_pay_are_left_out(tmp_path: Path) -> None:
    stopped, whole = (tried(tmp_path, shape) for shape in ("policy", EVERY_LEVEL))
    assert stopped.tokens == whole.tokens == 30
    assert 0 < stopped.passes <= 2 * stopped.rounds
    assert 3 * whole.rounds < whole.passes <= LEVELS * whole.rounds


def test_a_run_tries_both_and_reports_them(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each level of a draft takes an eighth of a step."""
    clock.script(flat)
    law = EagleHead.log_probs

    def timed(head: EagleHead, features: Tensor) -> Tensor:
        clock.advance(1)
        return law(head, features)

    monkeypatch.setattr(EagleHead, "log_probs", timed)
    base = tuner(clock, tmp_path / "m", replace(TASK, batch_sizes=(1,), max_new_tokens=6))
    head = base.decoder.load_draft_head(save_head(tmp_path), top_k=3, depth=3)
    tuned = replace(base, drafter=head).run()
    assert tuned.policy.verdict(1).shape != "off"
    every_level, stopped = tuned.every_level[1], tuned.last[1]
    assert len(every_level) == len(stopped) == POLICY_REPEATS
    assert all(trial.identical for trial in every_level)
    assert {trial.setting.shape for trial in every_level} == {EVERY_LEVEL}
    assert stopped[0].passes > 0
    write_report(tmp_path / "report", tuned, base.prompts)
    text = (tmp_path / "report" / "report.md").read_text()
    section = text.split("## What pruning saves while drafting\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| 1"]
    for line, trials in zip(lines, (every_level, stopped), strict=True):
        rounds = sum(trial.rounds for trial in trials)
        assert float(line[2]) == round(sum(trial.passes for trial in trials) / rounds, 2)
        assert float(line[3]) == pytest.approx(125 * float(line[2]), rel=0.01)
        assert float(line[6]) == round(trials[0].speedup, 2)


def test_a_drafter_that_drafts_at_once(run: FinishedRun, tmp_path: Path) -> None:
    assert run.tuned.every_level == {}
    assert all(trial.passes == 0 for trial in run.tuned.last[1])
    write_report(tmp_path, run.tuned, run.tuner.prompts)
    assert (
        "Nothing: this drafter gives a whole draft at once" in (tmp_path / "report.md").read_text()
    )
