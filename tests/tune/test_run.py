# SPDX-License-Identifier: Apache-2.0
"""Whole tuning runs on a tiny model, under a clock that only the script moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.eagle import related_decoder
from support.tiny import tiny_decoder
from support.tuning import (
    CONTEXTS,
    ROWS,
    TASK,
    TICK,
    Clock,
    FinishedRun,
    TimedSuffix,
    copying_prompts,
    flat,
    tuner,
)
from treeattn.decoder.model import Model
from treeattn.schedule import Policy
from treeattn.tune import run as run_module
from treeattn.tune.run import POLICY_REPEATS, TEMPERATURES
from treeattn.tune.state import Measured

MEASURES = ("step_costs", "draft_costs", "record", "try_setting", "restore_ms")


def steep(rows: int, context: int) -> float:
    """A draft never pays."""
    return 8 * rows


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is measured, and with what."""
    counted: Counter[str] = Counter()

    def watch(name: str) -> None:
        original = getattr(run_module, name)

        def watched(*args: Any, **options: Any) -> Any:
            what = [value for value in args if isinstance(value, run_module.Setting)]
            what += [options.get("batch_size"), options.get("temperature")]
            counted[" ".join(map(str, [name, *what]))] += 1
            return original(*args, **options)

        monkeypatch.setattr(run_module, name, watched)

    for name in MEASURES:
        watch(name)
    return counted


def test_what_a_run_finds(run: FinishedRun) -> None:
    tuned = run.tuned
    assert list(tuned.found) == list(tuned.last) == [1, 2]
    assert tuple(tuned.recordings) == TEMPERATURES and len(tuned.recordings[0.0]) == 3
    assert len(run.texts) == len(set(run.texts)) <= run.tuner.most_parts
    for size, found in tuned.found.items():
        assert found.noise == 0.0  # the clock is exact
        assert found.verdict is not None and found.verdict.speedup > 1.2
        assert all(trial.identical for trial in (*found.trials, *tuned.last[size]))
        assert max(t.setting.num_nodes for t in found.trials) * size == ROWS[-1]
        verdict = tuned.policy.verdicts[size]
        assert verdict.shape == found.verdict.setting.shape
        assert verdict.num_nodes % found.verdict.setting.num_nodes == 0
        assert verdict.speedup == round(found.verdict.speedup, 4)
        assert len(tuned.last[size]) == POLICY_REPEATS
        assert tuned.last[size][0].speedup > 1.2
    assert tuned.policy.about["seed"] == 0 and tuned.policy.about["model"] == "tiny"
    assert "timings" in tuned.policy.about["repeatability"]
    learned = tuned.policy.learned
    assert sum(map(sum, learned["seen"])) > 0 and sum(map(sum, learned["said"])) > 0


def test_costs_are_those_of_the_clock(run: FinishedRun) -> None:
    costs = run.tuned.policy.costs
    assert {(rows, context, ms) for rows, context, ms in costs.verify} == {
        (rows, context, 1000 * TICK * flat(rows, 0)) for rows in ROWS for context in CONTEXTS
    }
    assert {ms for _, ms in (*costs.accept, *costs.remap)} == {500 * TICK}
    assert {ms for level, width, ms in costs.draft if (level, width) == (1, 1)} == {250 * TICK}
    assert set(costs.about) == {"verify", "accept", "remap", "draft"}


def test_steps_are_timed_at_every_batch_size_on_the_way_down(clock: Clock, tmp_path: Path) -> None:
    """Requests end one after the other, so a batch of 3 becomes one of 2 and of 1."""
    clock.script(flat)
    task = replace(TASK, batch_sizes=(3,), max_new_tokens=4)
    costs = tuner(clock, tmp_path / "m", task).run().policy.costs
    assert list(costs.batches) == [1, 2, 3]
    for size, tables in costs.batches.items():
        assert {rows for rows, _, _ in tables.verify} == {size, *(r for r in ROWS if r > size)}
        assert tables.draft == costs.draft != ()
        assert f"{size} requests" in tables.about["verify"]
    assert costs.batches[1].verify == costs.verify


def test_decoding_follows_the_policy(run: FinishedRun, tmp_path: Path) -> None:
    """The tokens are those of plain decoding, in fewer steps, by drafts of its size."""
    file = tmp_path / "policy.json"
    run.tuned.policy.save(file)
    assert Policy.load(file) == run.tuned.policy
    prompts = copying_prompts()[:2]
    plain = related_decoder().generate(prompts, max_new_tokens=12, drafter="none", num_nodes=1)
    followed = related_decoder().generate(prompts, max_new_tokens=12, policy=file)
    assert [out.tokens for out in followed] == [out.tokens for out in plain]
    steps = [sum(out.stats.steps for out in outs) for outs in (followed, plain)]
    assert steps[0] < steps[1] == 24
    assert sum(sum(out.stats.accepted) for out in followed) > 0
    for out in followed:
        assert out.stats.drafted <= out.stats.steps * (run.tuned.policy.verdict(2).num_nodes - 1)


def test_off_where_no_draft_pays(clock: Clock, tmp_path: Path) -> None:
    clock.script(steep)
    tuned = tuner(clock, tmp_path / "m", replace(TASK, max_new_tokens=4)).run()
    for size in (1, 2):
        verdict = tuned.policy.verdicts[size]
        assert (verdict.shape, verdict.num_nodes, verdict.draft_ms) == ("off", 1, 0.0)
        assert tuned.last[size][0].drafted == 0
        assert tuned.last[size][0].speedup == 1.0


def test_killed_and_started_again(clock: Clock, tmp_path: Path, calls: Counter[str]) -> None:
    """What was measured is not measured again, and the end is that of a run in one go."""
    clock.script(flat, accept=0.5, remap=0.5)
    whole = tuner(clock, tmp_path / "whole").run()
    in_one_go = Counter(calls)
    assert set(in_one_go.values()) - {1} <= {POLICY_REPEATS}
    calls.clear()

    file = tmp_path / "killed"
    sizes = []
    for kill_at in (1, 2, 3, 5, 6, 9, 14, 20):
        parts: list[str] = []

        def advance(text: str, parts: list[str] = parts, kill_at: int = kill_at) -> None:
            parts.append(text)
            if len(parts) == kill_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tuner(clock, file, advance=advance).run()
        known = [part.endswith(": known") for part in parts]
        assert known == sorted(known, reverse=True)
        sizes.append(len(Measured(file, TASK.about)))
    assert sizes == [kill_at - 1 for kill_at in (1, 2, 3, 5, 6, 9, 14, 20)]

    resumed = tuner(clock, file).run()
    assert calls == in_one_go
    assert resumed == whole
    assert (file.read_bytes()) == (tmp_path / "whole").read_bytes()
    calls.clear()
    assert tuner(clock, file).run() == whole and not calls


def test_killed_while_measuring(clock: Clock, tmp_path: Path, calls: Counter[str]) -> None:
    """The part that was cut short is measured once more, and only that."""
    clock.script(flat)
    task = replace(TASK, batch_sizes=(2,), max_new_tokens=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "restore_ms", _killed)
        with pytest.raises(KeyboardInterrupt):
            tuner(clock, tmp_path / "m", task).run()
    calls.clear()
    tuner(clock, tmp_path / "m", task).run()
    assert dict(calls) == {"restore_ms None None": 1}


def _killed(decoder: Any) -> Any:
    raise KeyboardInterrupt


def test_the_same_seed_gives_the_same_file(clock: Clock, tmp_path: Path) -> None:
    clock.script(flat, accept=0.5, remap=0.5)
    saved = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        task = replace(TASK, seed=seed, batch_sizes=(2,))
        tuned = tuner(clock, tmp_path / f"{name}.measured", task).run()
        tuned.policy.save(tmp_path / name)
        saved.append((tmp_path / name).read_bytes())
        sampled = tuned.recordings[1.0]
        if name == "a":
            first = sampled
        else:
            assert (sampled == first) == (seed == 0)
    assert saved[0] == saved[1] != saved[2]


def steps_under(policy: Policy, clock: Clock, level: float, batch_size: int) -> list[float]:
    """Milliseconds of every step of decoding by `policy`; `clock` is scripted."""
    before = Model.forward
    begun: list[float] = []

    def forward(*args: Any, **options: Any) -> Any:
        out = before(*args, **options)
        begun.append(clock.now)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "forward", forward)
        related_decoder().generate(
            copying_prompts()[:batch_size],
            max_new_tokens=12,
            drafter=TimedSuffix(clock, level),
            policy=policy,
        )
    ends = begun[batch_size:]  # prefills come first
    return [1000 * (end - start) for start, end in zip(begun[batch_size - 1 :], ends, strict=False)]


@pytest.mark.parametrize(
    ("bound", "level", "most_nodes"),
    [
        (8.0, 0.0, {1: 4, 2: 2}),
        (10.0, 0.0, {1: 8, 2: 4}),
        (9.0, 0.25, {1: 4, 2: 2}),
        (9.0, 1.0, {1: 2, 2: 2}),
        (8.5, 1.0, {1: 1, 2: 1}),
        (7.0, 0.0, {1: 1, 2: 1}),
    ],
)
def test_the_latency_bound(
    bound: float, level: float, most_nodes: dict[int, int], clock: Clock, tmp_path: Path
) -> None:
    """No setting is tried whose longest step, drafting included, is above it; nor does decoding by
    the policy go above it, but for plain decoding, which is never refused."""
    clock.script(flat)
    max_step_ms = 1000 * TICK * bound + 0.5  # what takes no time counts as 0.001 ms
    task = replace(TASK, max_step_ms=max_step_ms)
    tuned = tuner(clock, tmp_path / "m", task, level=level).run()
    assert tuned.policy.max_step_ms == max_step_ms
    for size, found in tuned.found.items():
        tried = [trial.setting.num_nodes for trial in found.trials]
        assert max(tried, default=1) == most_nodes[size]
        assert (tuned.policy.verdicts[size].shape == "off") == (most_nodes[size] == 1)
        steps = steps_under(tuned.policy, clock, level, size)
        assert max(steps) <= max(max_step_ms, 8000 * TICK)


def test_a_model_of_few_positions(clock: Clock, tmp_path: Path, monkeypatch: Any) -> None:
    """Contexts are those that it has positions for."""
    monkeypatch.setattr(run_module, "CONTEXTS", (48, 512))
    clock.script(flat)
    run = tuner(clock, tmp_path / "m", replace(TASK, batch_sizes=(1,)))
    short = replace(run, decoder=tiny_decoder(max_position=100), prompts=run.prompts[:1])
    costs = short.run().policy.costs
    assert {context for _, context, _ in costs.verify} == {48, 50}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_sizes": ()}, r"batch_sizes must be in \[1, 128\], got \(\)"),
        ({"batch_sizes": (0, 4)}, r"batch_sizes must be in \[1, 128\], got \(0, 4\)"),
        ({"batch_sizes": (1, 129)}, r"batch_sizes must be in \[1, 128\], got \(1, 129\)"),
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
        ({"max_step_ms": 0.0}, "max_step_ms must be > 0, got 0"),
        ({"max_step_ms": float("nan")}, "max_step_ms must be > 0, got nan"),
    ],
)
def test_a_task_is_checked_before_anything_is_measured(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TASK, **change)
