# SPDX-License-Identifier: Apache-2.0
"""The report holds every number that the run was for, and they are those of the run."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.tuning import ROWS, TICK, FinishedRun, flat, small_tables, trial
from treeattn.schedule import Fixed
from treeattn.schedule.recording import load_with_about
from treeattn.tune.analysis import (
    acceptance,
    best_fixed,
    overall,
    policy_by_prompt,
    predicted,
    pruning,
    regret,
    replayed,
)
from treeattn.tune.report import BUDGETS, COLUMNS, summary, trial_rows, write_report
from treeattn.tune.restore import ACCEPTED, CASES
from treeattn.tune.run import TEMPERATURES
from treeattn.tune.search import Found
from treeattn.tune.trials import Setting

Sections = dict[str, list[list[str]]]


def tables(folder: Path) -> Sections:
    """The sections of report.md by heading: the cells of their table's rows, header first."""
    sections: Sections = {}
    for part in (folder / "report.md").read_text().split("\n## ")[1:]:
        title, *lines = part.splitlines()
        table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        sections[title] = [row for row in table if not row[0].startswith("---")]
    return sections


@pytest.fixture(scope="module")
def folder(run_once: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the report of the run lies."""
    folder = tmp_path_factory.mktemp("report") / "new"
    with pytest.MonkeyPatch.context() as patch:
        small_tables(patch)
        write_report(folder, run_once.tuned, run_once.tuner.prompts)
    return folder


@pytest.fixture(scope="module")
def sections(folder: Path) -> Sections:
    return tables(folder)


def test_trials(run: FinishedRun, folder: Path, sections: Sections) -> None:
    """A row per setting tried, the policy's repeats at the end, the same in Markdown and CSV."""
    rows = sections["Trials"]
    with (folder / "trials.csv").open(newline="") as file:
        assert list(csv.reader(file)) == rows
    assert rows[0] == list(COLUMNS)
    trials = [
        one
        for size, found in run.tuned.found.items()
        for one in (*found.trials, *run.tuned.last[size])
    ]
    assert len(rows) == 1 + len(trials) > 10
    for row, one in zip(rows[1:], trials, strict=True):
        cells = dict(zip(COLUMNS, row, strict=True))
        assert (cells["batch"], cells["setting"]) == (str(one.batch_size), str(one.setting))
        assert cells["tokens/s"] == f"{one.tokens / sum(one.seconds.values()):.1f}"
        assert cells["against plain"] == f"{one.speedup:.2f}"
        assert cells["predicted"] == f"{predicted(run.tuned, one):.2f}"
        assert cells["tokens/step"] == f"{one.tokens / one.steps:.2f}"
        assert cells["rows/step"] == f"{(one.drafted + one.steps) / one.rounds:.1f}"
        assert cells["accept ms/step"] == cells["remap ms/step"] == f"{500 * TICK:.2f}"
        assert cells["identical"] == "yes"
    first = dict(zip(COLUMNS, rows[1], strict=True))
    assert first["setting"] == "chain-2" and first["verify ms/step"] == f"{1000 * TICK * 8:.2f}"


def test_predictions_are_near_what_was_measured(run: FinishedRun) -> None:
    """Under an exact clock a replay errs only in what it takes of a recorded draft. In the last
    group of batch 2 is the first prompt again, as it was decoded."""
    for size, found in run.tuned.found.items():
        for one in (*found.trials, *run.tuned.last[size]):
            assert predicted(run.tuned, one) == pytest.approx(one.speedup, rel=0.1)


def test_a_replay_counts_every_group(run: FinishedRun) -> None:
    done = replayed(run.tuned, Fixed(2, "chain"), 2)
    (measured,) = (t for t in run.tuned.found[2].trials if str(t.setting) == "chain-2")
    assert (done.tokens, done.steps, done.accepted) == (32, measured.steps, measured.accepted)
    assert done.rows == measured.steps + measured.drafted
    assert done.ms["verify"] == 1000 * measured.seconds["verify"]


def test_where_outputs_differ_the_table_says_so(run: FinishedRun) -> None:
    found = run.tuned.found[1]
    odd = replace(found.trials[0], identical=False)
    tuned = replace(run.tuned, found={1: replace(found, trials=(odd, *found.trials[1:]))})
    assert [row[-1] for row in trial_rows(tuned)][:2] == ["NO", "yes"]


def test_prompt_by_prompt(run: FinishedRun, sections: Sections) -> None:
    rows = sections["The policy, prompt by prompt, batch 1"]
    names = [row[0] for row in rows[1:]]
    assert names == ["one", "two", "three", "all copy", "all mixed", "all"]
    values = {row[0]: float(row[2]) for row in rows[1:]}
    last = run.tuned.last[1]
    assert values["two"] == values["all mixed"] == round(sorted(t.ratios[1] for t in last)[1], 2)
    assert values["all"] == round(overall(last), 2)
    assert min(values["one"], values["three"]) <= values["all copy"]
    only_2 = replace(run.tuned, last={2: run.tuned.last[2]})
    assert policy_by_prompt(only_2, run.tuner.prompts) == {}


def test_verify_time_against_rows(sections: Sections) -> None:
    rows = sections["Verify time against rows kept"]
    assert rows[0] == ["batch", "rows", "ms, context 16", "ms, context 32"]
    assert rows[1:] == [
        [str(batch_size), str(n), *[f"{1000 * TICK * flat(n, 0):.1f}"] * 2]
        for batch_size in (1, 2)
        for n in ROWS
        if n >= batch_size
    ]


def test_what_pruning_saves(run: FinishedRun, sections: Sections) -> None:
    """Each line is a replay of the same drafts; none prunes what the recordings did not hold."""
    rows = sections["What pruning saves, place by place"]
    assert rows[0] == ["batch", "pruned", "rows/step", "tokens/step", "ms/token"]
    assert len(rows) == 1 + 4 * len(run.tuned.found)
    for batch_size in run.tuned.found:
        done = pruning(run.tuned, batch_size)
        lines = [row for row in rows[1:] if row[0] == str(batch_size)]
        for (name, replay), line in zip(done.items(), lines, strict=True):
            assert line[1:] == [
                name,
                f"{replay.rows / replay.rounds:.1f}",
                f"{replay.tokens / replay.steps:.2f}",
                f"{replay.total_ms / replay.tokens:.2f}",
            ]
        nothing, *pruned = done.values()
        assert all(one.tokens == nothing.tokens for one in pruned)
        assert all(one.rows / one.rounds <= nothing.rows / nothing.rounds for one in pruned)
        assert nothing.rounds <= nothing.steps <= nothing.rounds * batch_size


def test_recordings_can_be_simulated(run: FinishedRun, folder: Path) -> None:
    recordings, about = load_with_about(folder / "recordings.jsonl")
    assert [one.tokens for one in recordings] == [one.tokens for one in run.tuned.recordings[0.0]]
    assert about == run.tuned.policy.about
    assert any(draft is not None for one in recordings for draft in one.drafts)


def test_restore(sections: Sections) -> None:
    rows = sections["Time to restore the KV cache"]
    assert [row[0] for row in rows[1:]] == [name for name, _, _ in CASES]
    assert [row[1] for row in rows[1:]] == [f"{500000 * TICK:.1f}"] * 3
    assert [row[2] for row in rows[1:]] == ["0", str(ACCEPTED), "0"]


def test_acceptance_at_equal_budget(run: FinishedRun, sections: Sections) -> None:
    """Chain and tree of as many nodes in neighbouring rows, a column per temperature."""
    rows = sections["Acceptance at equal budget"]
    assert rows[0] == ["nodes", "shape", *(f"T = {value}" for value in TEMPERATURES)]
    assert rows[0][2:] == ["T = 0.0", "T = 0.2", "T = 0.6", "T = 1.0"]
    pairs = [(str(size), shape) for size in BUDGETS for shape in ("chain", "tree")]
    assert [tuple(row[:2]) for row in rows[1:]] == pairs
    for row in rows[1:]:
        for cell, recordings in zip(row[2:], run.tuned.recordings.values(), strict=True):
            assert cell == f"{acceptance(recordings, row[1], int(row[0])):.2f}"
    at_0 = {(row[0], row[1]): float(row[2]) for row in rows[1:]}
    for size, chain in (("2", "chain-2"), ("4", "chain-4"), ("8", "chain-8")):
        (one,) = (t for t in run.tuned.found[1].trials if str(t.setting) == chain)
        assert at_0[size, "chain"] == round(one.accepted / one.steps, 2) > 0


def test_summary(run: FinishedRun, folder: Path) -> None:
    lines = summary(run.tuned).splitlines()
    assert len(lines) == 2
    for (size, found), line in zip(run.tuned.found.items(), lines, strict=True):
        chain, tree = found.best("chain"), found.best("tree")
        assert chain is not None and tree is not None
        excess, hindsight = regret(run.tuned, size)
        assert line == (
            f"- batch {size}: **{run.tuned.policy.verdict(size).shape}**; "
            f"best chain {chain.speedup:.2f}x ({chain.setting}), "
            f"best tree {tree.speedup:.2f}x ({tree.setting}); "
            f"policy {overall(run.tuned.last[size]):.2f}x; plain differs from itself by 0.0%; "
            f"replayed, the policy takes {100 * excess:+.1f}% more time than the best fixed "
            f"setting in hindsight ({hindsight})"
        )
    text = (folder / "report.md").read_text()
    assert summary(run.tuned) in text and "settings that lie within the noise" in text


def test_summary_where_nothing_was_tried(run: FinishedRun) -> None:
    tuned = replace(run.tuned, found={1: Found(1, 0.0, ())})
    assert "; no draft keeps the latency bound; policy " in summary(tuned)


def test_regret_is_against_the_best_fixed_setting(run: FinishedRun) -> None:
    name, ms = best_fixed(run.tuned, 1)
    settings = [
        Fixed(1),
        *(Fixed(n, shape) for n in (2, 3, 4, 6, 8) for shape in ("chain", "tree")),
    ]
    times = [replayed(run.tuned, setting, 1).total_ms for setting in settings]
    assert ms == pytest.approx(min(times)) and name != "off"
    assert best_fixed(run.tuned, 2)[0] in {
        "off", *(f"{shape}-{n}" for n in (2, 3, 4) for shape in ("chain", "tree"))
    }  # fmt: skip
    assert regret(run.tuned, 1)[0] < 0.05


def test_overall_counts_each_group_by_its_time() -> None:
    one = trial(Setting("policy", 4), 1.0)
    trials = [replace(one, plain_by_group=(6.0, 2.0), ratios=(3.0, 0.5))] * 2
    assert overall(trials) == 8.0 / (2.0 + 4.0)
    assert overall(trials, [0]) == 3.0 and overall(trials, [1]) == 0.5


def test_pictures(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["recordings.jsonl", "report.md", "trials.csv", "tune.png"]
    assert (folder / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert "![tune](tune.png)" in (folder / "report.md").read_text()


def test_without_matplotlib(
    run: FinishedRun, sections: Sections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_report(tmp_path, run.tuned, run.tuner.prompts)
    assert tables(tmp_path) == sections
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "recordings.jsonl",
        "report.md",
        "trials.csv",
    ]
    assert "pip install matplotlib" in (tmp_path / "report.md").read_text()
