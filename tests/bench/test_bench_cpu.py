# SPDX-License-Identifier: Apache-2.0
"""The command end to end on a toy shape."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bench import cpu
from bench.acceptance import AcceptCase
from bench.calibrate import Calibration, calibrate
from bench.check import WrongResultError
from bench.items import ITEMS, accept, all_jobs, attention_row, remap
from bench.items.remap import RemapCase
from bench.memory import Memory, measure_memory
from bench.models import Model
from bench.problem import Case
from bench.row import Row
from bench.session import Budget, Job, Session
from bench.timing import Effort
from bench.trees import DENSITIES

TOY = Model("toy", num_qo_heads=4, num_kv_heads=2, head_dim=16, num_layers=2)
EFFORT = Effort(0.005, 0.01, 0.005)
ROW_FIELDS = {
    *("item", "case", "ours_us", "floor_us", "best_peer", "best_peer_us"),
    *("over_floor", "over_peer", "valid"),
}


def toy_jobs(calibration: Calibration) -> list[Job]:
    def attention(item: str, case: Case) -> Job:
        return Job(item, case.label, lambda s: [attention_row.measure(s, item, case)], quick=True)

    acceptance = AcceptCase(100, "eagle-16", 2, "fp32")
    moves = RemapCase(TOY, 1, 2)
    return [
        attention("A2", Case(TOY, 20, "eagle-16", "fp32")),
        *(attention("C1", Case(TOY, 0, f"{s}-32", "fp32")) for s in DENSITIES),
        Job("A3", "slow", lambda s: pytest.fail("not part of --quick")),
        Job("P1", "", lambda s: [accept.measure(s, "P1", acceptance)], quick=True),
        Job("R1", "", lambda s: [remap.measure(s, "R1", moves)], quick=True),
    ]


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick_calibration(threads: list[int], effort: Effort, **options: bool) -> Calibration:
        return calibrate(threads, EFFORT, **options)

    monkeypatch.setattr(cpu, "all_jobs", toy_jobs)
    monkeypatch.setattr(cpu, "calibrate", quick_calibration)
    monkeypatch.setattr("bench.calibrate._READ_BYTES", 1 << 20)
    monkeypatch.setattr(cpu, "QUICK_TOTAL_S", 0.5)
    monkeypatch.setattr(cpu, "measure_memory", lambda: measure_memory(TOY))


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, folder = tmp_path / "r.json", tmp_path / "report"
    assert cpu.main(["--quick", "--json", str(result), "--report", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "C1 at ctx 0" in shown.out and "[9/9] R1" in shown.err

    data = json.loads(result.read_text())
    assert {"calibration", "rows", "goals"} <= data.keys()
    assert [row["item"] for row in data["rows"]] == ["A2", *["C1"] * 6, "P1", "R1"]
    for row in data["rows"]:
        assert row.keys() >= ROW_FIELDS
        assert row["ours_us"] > 0 and row["p20_us"] <= row["ours_us"] <= row["p80_us"]
        assert row["over_floor"] == pytest.approx(row["ours_us"] / row["floor_us"])
        assert row["best_peer_us"] == min(row["peers"].values())
        assert row["over_peer"] == pytest.approx(row["best_peer_us"] / row["ours_us"])
        assert isinstance(row["valid"], bool)
    assert len(data["goals"]) == 12
    assert all(goal.keys() >= {"name", "value", "goal", "holds"} for goal in data["goals"])
    isa = data["calibration"]["isa"]
    assert all(rate["best"] > 0 for rate in data["calibration"]["fma"][isa].values())
    assert data["calibration"]["bf16_ceiling"]

    report = (folder / "report.md").read_text()
    assert "## Goals" in report and "| A2 |" in report
    with (folder / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 9 and float(lines[0]["ours_us"]) > 0 and lines[0]["sdpa_gqa_us"]
    pytest.importorskip("matplotlib")
    assert "cost-against-density.png" in report
    assert (folder / "cost-against-density.png").stat().st_size > 5000


def test_items_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "r.json"
    assert cpu.main(["--quick", "--items", "p1, r1", "--json", str(result)]) == 0
    data = json.loads(result.read_text())
    assert [row["item"] for row in data["rows"]] == ["P1", "R1"] and data["memory"] is None
    assert len(data["goals"]) == 12
    shown = capsys.readouterr().out
    assert "greedy accept" in shown and "remap B=1" in shown
    assert "attention fp32" not in shown and "top-p" not in shown and "extra memory" not in shown


@pytest.mark.parametrize("items", ["A2,Z9", ""])
def test_unknown_items_are_refused(items: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(["--items", items])
    assert "must be of A2" in capsys.readouterr().err


def test_a_wrong_result_makes_no_row_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(session: Session) -> list[Row]:
        raise WrongResultError("off by one")

    monkeypatch.setattr(cpu, "all_jobs", lambda calibration: [Job("P1", "case", wrong, quick=True)])
    assert cpu.main(["--quick", "--items", "P1"]) == 1
    assert "WRONG RESULT: P1 case: off by one" in capsys.readouterr().err


def test_the_suite_has_every_item_and_a_quick_part_of_each() -> None:
    calibration = calibrate([1, 2], EFFORT)
    jobs = all_jobs(calibration)
    assert {job.item for job in jobs} == set(ITEMS)
    assert {job.item for job in jobs if job.quick} == set(ITEMS)
    labels = [(job.item, job.label) for job in jobs]
    assert labels == sorted(labels, key=lambda job: ITEMS.index(job[0]))
    h1 = sum(job.item == "H1" for job in jobs)
    assert h1 == 8 * 2 * 2 + 6 * 2 * (len(calibration.fma) - 1)


def test_the_budget_shares_what_is_left() -> None:
    budget = Budget(total_s=10.0, jobs_left=2, quiet_s=1.0)
    assert budget.effort().quiet_s == 1.0 and 3.0 < budget.effort().limit_s <= 4.0
    budget.begin -= 9.5
    assert budget.effort().limit_s < 0.25
    budget.begin -= 100.0
    assert 0 < budget.effort().limit_s <= 0.05


def test_memory_of_a_toy() -> None:
    measured = measure_memory(TOY)
    assert isinstance(measured, Memory) and all(size > 0 for size in measured.plan.values())
