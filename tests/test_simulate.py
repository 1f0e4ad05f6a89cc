# SPDX-License-Identifier: Apache-2.0
"""treeattn simulate: a run added up by hand, the same again, what is assumed, and bad arguments."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from treeattn.cli import main
from treeattn.cost import expected_tokens
from treeattn.cost_file import CostTables
from treeattn.schedule import Fixed, Verdict, sequoia_tree
from treeattn.schedule.acceptance import Acceptance
from treeattn.schedule.recording import Recording, save_recordings
from treeattn.schedule.replay import replay
from treeattn.schedule.simulate import Setting, compare, trial_policy
from treeattn.tree import DraftTree

COSTS: dict[str, Any] = {
    "verify": [[1, 64, 10.0], [2, 64, 11.0], [3, 64, 12.0], [4, 64, 13.0], [8, 64, 20.0]],
    "draft": [[1, 1, 1.0], [2, 1, 1.0], [2, 2, 1.5], [1, 8, 1.6], [2, 8, 1.7]],
    "accept": [[8, 0.5]],
    "remap": [[8, 0.25]],
    "about": {"verify": "measured: a laptop", "draft": "assumed: a tenth of verify"},
}
AFTER = 0.5 + 0.25  # accept and remap


def drafts() -> list[DraftTree | None]:
    """Right for two tokens at 0; only the unlikely sibling is right at 3; none at 5, but one."""
    parents = [-1, 0, 1, 0]
    scores = [0.0, -0.3, -0.4, -0.9]
    return [
        DraftTree([9, 10, 11, 77], parents, scores),
        None,
        None,
        DraftTree([12, 66, 67, 13], parents, scores),
        DraftTree([13, 14, 15, 77], parents, scores),
        DraftTree([14, 15, 16, 77], parents, scores),
    ]


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "drafts.jsonl"
    save_recordings(path, [Recording("six", 8, tuple(range(10, 16)), tuple(drafts()))], {"on": "x"})
    return path


def simulate(tmp_path: Path, *options: str | Path) -> dict[str, Any]:
    file = tmp_path / "out.json"
    assert main(["simulate", *map(str, options), "--json", str(file)]) == 0
    numbers: dict[str, Any] = json.loads(file.read_text())
    return numbers


def by_name(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["setting"]: entry for entry in case["settings"]}


def test_added_up_by_hand(tmp_path: Path, costs: Path, recording: Path) -> None:
    """Plain: 6 steps. Chain 2: 10 11 | 12 drafted right at 0, wrong at 3, one token of room at 4.
    Tree 4x2: right at 0, the sibling at 3, then nothing is left to draft for.
    Tree 4x1: 10 11 | 12, where there was no draft | the sibling 13, and 14 | 15.
    """
    given = ["--recording", recording, "--costs", costs, "--batch-sizes", "1"]
    (case,) = simulate(tmp_path, *given, "--chains", "2", "--trees", "4x2,4x1")["cases"]
    found = by_name(case)
    plain = 6 * (10.0 + AFTER)
    chain = 2 * (2.0 + 12.0 + AFTER) + (1.0 + 11.0 + AFTER)
    tree = 2 * (1.0 + 1.5 + 13.0 + AFTER) + (1.0 + 10.0 + AFTER)
    flat = 2 * (1.0 + 12.0 + AFTER) + 2 * (1.0 + 10.0 + AFTER)
    for name, ms, steps, rows in [
        ("plain", plain, 6, 6),
        ("chain 2", chain, 3, 3 + 3 + 2),
        ("tree 4x2", tree, 3, 4 + 4 + 1),
        ("tree 4x1", flat, 4, 3 + 1 + 3 + 1),
    ]:
        entry = found[name]
        assert (entry["ms"], entry["tokens"]) == (pytest.approx(ms), 6)
        assert entry["tokens_per_second"] == pytest.approx(6000 / ms)
        assert entry["speedup"] == pytest.approx(plain / ms)
        assert entry["rows_per_step"] == pytest.approx(rows / steps)
        assert entry["tokens_per_step"] == pytest.approx(6 / steps)
        assert sum(entry["share"].values()) == pytest.approx(1.0)
    assert found["plain"]["share"]["draft"] == 0.0
    assert found["chain 2"]["share"]["draft"] == pytest.approx(5.0 / chain)
    assert found["tree 4x2"]["share"]["verify"] == pytest.approx(36.0 / tree)
    assert case["best_fixed"] == "chain 2"
    online = found["online"]["tokens_per_second"]
    assert case["regret"] == pytest.approx(1 - online * chain / 6000)


def test_a_full_batch(tmp_path: Path, costs: Path, recording: Path) -> None:
    """Two requests, the same recording in both: every step costs what two of them do."""
    given = ["--recording", recording, "--costs", costs, "--batch-sizes", "2"]
    (case,) = simulate(tmp_path, *given, "--chains", "2", "--trees", "-")["cases"]
    found = by_name(case)
    assert found["plain"]["ms"] == pytest.approx(6 * (11.0 + AFTER))
    assert found["plain"]["tokens"] == 12
    # Levels 1 and 2 at width 2, then level 1; 6 rows cost what 8 do, then 4.
    chain = 2 * (1.6 + 1.5 + 20.0 + AFTER) + (1.6 + 13.0 + AFTER)
    assert found["chain 2"]["ms"] == pytest.approx(chain)


def test_recordings_begin_again_until_all_are_through() -> None:
    """Of one token and of three: beside the long one the short one runs three times."""
    short, long = (Recording("x", 0, (1,) * n, (None,) * n) for n in (1, 3))
    costs = CostTables(verify=((1, 64, 1.0), (2, 64, 1.5)))
    full = replay([short, long], Fixed(1), costs, batch_size=2, refill=True)
    assert (full.tokens, full.steps, full.total_ms) == (6, 6, pytest.approx(4.5))
    emptying = replay([short, long], Fixed(1), costs, batch_size=2)
    assert (emptying.tokens, emptying.steps, emptying.total_ms) == (4, 4, pytest.approx(3.5))


def test_what_is_assumed_is_said(
    tmp_path: Path, costs: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs.write_text(json.dumps({k: v for k, v in COSTS.items() if k != "remap"}))
    given = ["--recording", recording, "--costs", costs, "--batch-sizes", "1"]
    origins = simulate(tmp_path, *given)["origins"]
    assert {entry["table"]: entry["kind"] for entry in origins} == {
        "verify": "measured",
        "draft": "assumed",
        "accept": "unknown",
        "remap": "absent",
        "acceptance": "measured",
    }
    printed = capsys.readouterr().out
    assert "verify: MEASURED, a laptop\ndraft: ASSUMED, a tenth of verify\n" in printed
    assert "accept: UNKNOWN, no note in costs.json\nremap: ABSENT, not in costs.json" in printed
    assert "acceptance: MEASURED, 1 recordings in drafts.jsonl, on: x\n" in printed

    origins = simulate(tmp_path, "--costs", costs, "--batch-sizes", "1", "--alpha", "0.5")[
        "origins"
    ]
    assert origins[-1] == {
        "table": "acceptance",
        "kind": "assumed",
        "note": "assumed: alpha 0.5, siblings 0",
    }


def test_an_acceptance_file(tmp_path: Path, costs: Path) -> None:
    """Certain acceptance, as many tokens as the tree has levels and one more."""
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"acceptance": [[1.0]]}))
    given = ["--acceptance", table, "--costs", costs, "--tokens", "30", "--requests", "1"]
    numbers = simulate(tmp_path, *given, "--batch-sizes", "1", "--chains", "2", "--trees", "3")
    found = by_name(numbers["cases"][0])
    assert numbers["origins"][-1]["kind"] == "unknown"
    for name in ("chain 2", "tree 3"):
        assert found[name]["tokens_per_step"] == 3.0
        assert found[name]["ms"] == pytest.approx(10 * (2.0 + 12.0 + AFTER))


def test_the_same_seed_the_same_bytes(
    tmp_path: Path, costs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--costs", costs, "--alpha", "0.5,0.8", "--siblings", "0.4", "--batch-sizes", "1,2"]
    given += ["--tokens", "24", "--requests", "3", "--chains", "1,2", "--trees", "3x1,4x2"]

    def once(name: str, seed: int) -> tuple[str, list[bytes]]:
        folder = tmp_path / name
        simulate(tmp_path, *given, "--seed", str(seed), "--report", folder)
        written = [tmp_path / "out.json", *sorted(folder.iterdir())]
        return capsys.readouterr().out, [path.read_bytes() for path in written]

    first = once("first", 1)
    assert once("again", 1) == first
    assert once("other", 2)[0] != first[0]


def test_a_policy_of_its_own(tmp_path: Path, costs: Path, recording: Path) -> None:
    """A policy that says off is plain decoding, and its file serves as a cost file too."""
    off = {"shape": "off", "num_nodes": 1, "draft_ms": 0, "accepted": 0, "speedup": 1}
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps({"treeattn_policy": 1, "drafter": "x", "verdicts": {"1": off}, "costs": COSTS})
    )
    given = ["--recording", recording, "--costs", policy, "--policy", policy, "--batch-sizes", "1"]
    (case,) = simulate(tmp_path, *given, "--chains", "2", "--trees", "-")["cases"]
    found = by_name(case)
    assert found["online"]["tokens_per_second"] == found["plain"]["tokens_per_second"]
    assert case["policy"]["shape"] == "off"


def test_costs_by_batch_size(tmp_path: Path, costs: Path, recording: Path) -> None:
    slow = {"verify": [[8, 64, 100.0]]}
    costs.write_text(json.dumps({"batches": {"1": COSTS, "4": slow}, "about": {"verify": "?"}}))
    given = ["--recording", recording, "--costs", costs, "--batch-sizes", "1,2"]
    one, two = simulate(tmp_path, *given, "--chains", "2", "--trees", "-")["cases"]
    assert by_name(one)["plain"]["ms"] == pytest.approx(6 * (10.0 + AFTER))
    assert by_name(two)["plain"]["ms"] == pytest.approx(600.0)


def test_tables_by_batch_size_need_one(costs: Path) -> None:
    costs.write_text(json.dumps({"batches": {"4": COSTS}}))
    assert CostTables.load(costs, batch_size=3).source("verify") == "measured"
    with pytest.raises(ValueError, match=r"batch_size must be given, .* by batch size: \[4\]"):
        CostTables.load(costs)


def test_what_the_costs_do_not_know_is_left_out(
    tmp_path: Path, costs: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--recording", recording, "--costs", costs, "--batch-sizes", "4"]
    (case,) = simulate(tmp_path, *given, "--chains", "1,2", "--trees", "-")["cases"]
    why = "costs must know verify of 12 rows at context 8, got inf"
    assert by_name(case)["chain 2"]["why_not"] == why
    assert f"chain 2 is left out: {why}" in capsys.readouterr().out
    assert "why_not" not in by_name(case)["chain 1"]


def test_the_report(tmp_path: Path, costs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    given = ["--costs", costs, "--alpha", "0.5,0.8", "--batch-sizes", "1,2", "--requests", "2"]
    given += ["--tokens", "24", "--chains", "1,2", "--trees", "-"]
    folder = tmp_path / "report"
    simulate(tmp_path, *given, "--report", folder)
    page = (folder / "report.md").read_text()
    assert "- verify: MEASURED, a laptop" in page and "](speedup.svg)" in page
    assert "## alpha 0.8, batch 2" in page
    with (folder / "settings.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 4  # cases, settings
    assert {row["setting"] for row in rows} == {"plain", "chain 1", "chain 2", "online"}
    picture = (folder / "speedup.svg").read_text()
    for words in ("alpha 0.5", "batch 2", "best chain", "best tree", "online"):
        assert words in picture

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    simulate(tmp_path, *given, "--report", tmp_path / "bare")
    assert "The plot needs matplotlib" in (tmp_path / "bare" / "report.md").read_text()
    assert not (tmp_path / "bare" / "speedup.svg").exists()


@pytest.mark.parametrize("p", [(0.7, 0.12, 0.07), (0.5, 0.3, 0.1, 0.05), (0.9,)])
def test_its_trees_are_those_of_sequoia(p: tuple[float, ...]) -> None:
    for num_nodes, depth in [(2, 1), (4, 2), (9, 3), (32, 5)]:
        parents, tokens = sequoia_tree(p, num_nodes, depth)
        tree = Acceptance((p,)).tree(num_nodes, depth)
        assert len(tree) == len(parents)
        assert expected_tokens(tree.parents, [p]) == pytest.approx(tokens, rel=1e-12)


def test_one_recording_holds_every_tree_and_chain() -> None:
    table = Acceptance(((0.6, 0.2), (0.5, 0.3)))
    (recording,) = table.imagine(
        [(8, 2), (9, 4)], longest_chain=7, num_requests=1, num_tokens=3, context=0, seed=0
    )
    tree = recording.drafts[0]
    assert tree is not None and tree.scores is not None and tree.depths.max() == 7
    for num_nodes, depth in [(8, 2), (9, 4)]:
        shallow = tree.keep(tree.depths <= depth)
        assert shallow.scores is not None
        best = sorted(shallow.scores)[-num_nodes:]
        wanted = table.tree(num_nodes, depth).scores
        assert best == pytest.approx(sorted(wanted))  # type: ignore[arg-type]


def test_geometric_acceptance() -> None:
    (row,) = Acceptance.geometric(0.7, 0.4).rows
    assert row[:3] == pytest.approx((0.7, 0.3 * 0.4, 0.3 * 0.6 * 0.4))
    assert len(row) == 8 and sum(row) < 1
    assert Acceptance.geometric(0.7).rows == ((0.7,),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alpha", "1.5"], "alpha must be in [0, 1], got 1.5"),
        (["--alpha", "high"], "--alpha must be numbers separated by commas, got 'high'"),
        (["--alpha", "0.5", "--siblings", "2"], "siblings must be in [0, 1], got 2.0"),
        (["--alpha", "0.5", "--tokens", "0"], "--tokens must be >= 1, got 0"),
        (["--alpha", "0.5", "--seed", "-1"], "--seed must be >= 0, got -1"),
        (
            ["--alpha", "0.5", "--batch-sizes", "1,0"],
            "--batch-sizes must be integers >= 1 separated by commas, got '1,0'",
        ),
        (
            ["--alpha", "0.5", "--chains", "two"],
            "--chains must be integers >= 1 separated by commas, got 'two'",
        ),
        (
            ["--alpha", "0.5", "--trees", "1x1"],
            "at least 2 nodes and 1 level, separated by commas, got '1x1'",
        ),
        (
            ["--alpha", "0.5", "--trees", "-", "--chains", "-"],
            "--chains and --trees must name a setting at least, got - for both",
        ),
        (
            ["--alpha", "0.5", "--batch-sizes", "16", "--tokens", "4"],
            "costs must know verify of 16 rows at context 64, got inf",
        ),
    ],
)
def test_bad_arguments(
    options: list[str], message: str, costs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--costs", str(costs), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("treeattn simulate: ") and message in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "acceptance table.json: "),
        ("5", 'it must hold one object {"acceptance": '),
        ("{}", 'it must hold one object {"acceptance": '),
        ('{"acceptance": []}', "acceptance must have a row per depth, got none"),
        ('{"acceptance": [[0.5], [0.7, 0.6]]}', "acceptance[1] must sum to at most 1, got 1.2"),
        ('{"acceptance": [[0.5, -0.1]]}', "acceptance[0][1] must be in [0, 1], got -0.1"),
    ],
)
def test_bad_acceptance_files(
    text: str,
    message: str,
    tmp_path: Path,
    costs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "table.json"
    table.write_text(text)
    assert main(["simulate", "--costs", str(costs), "--acceptance", str(table)]) == 2
    assert message in capsys.readouterr().err.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "costs costs.json: Expecting"),
        ('{"draft": []}', "costs costs.json: cost tables must have the table verify"),
        ('{"batches": {"1": [[1, 64, 9.0]]}}', "batches must hold tables by batch size, got {'1'"),
        ('{"batches": {"one": {}}}', "batches must hold tables by batch size, got {'one'"),
        (
            '{"batches": {"1": {"verify": [[1, 64, 9.0]]}}}',
            "costs costs.json: batch_size must be at most 1, got 2",
        ),
    ],
)
def test_bad_cost_files(
    text: str, message: str, costs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs.write_text(text)
    given = ["--alpha", "0.5", "--batch-sizes", "1,2"]
    assert main(["simulate", "--costs", str(costs), *given]) == 2
    assert message in capsys.readouterr().err.replace(f"{costs.parent}/", "")


def test_siblings_without_alpha(
    costs: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--costs", str(costs), "--recording", str(recording), "--siblings", "0.4"]
    assert main(["simulate", *given]) == 2
    assert "--siblings goes with --alpha, got --siblings 0.4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "acceptance must have a row per depth, got none"),
        (((0.5,), (0.7, 0.6)), r"acceptance\[1\] must sum to at most 1, got 1.2"),
        (((0.5, -0.1),), r"acceptance\[0\]\[1\] must be in \[0, 1\], got -0.1"),
    ],
)
def test_bad_acceptance(rows: tuple[tuple[float, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Acceptance(rows)


def test_names_of_settings() -> None:
    names = [Setting("chain", 3, 2).name, Setting("tree", 8, 3).name, Setting("tree", 8).name]
    assert names == ["chain 2", "tree 8x3", "tree 8"]


def test_where_no_setting_pays_the_trial_policy_is_off() -> None:
    """Drafts never come true."""
    never = [tree and DraftTree([-9] * len(tree), tree.parents, tree.scores) for tree in drafts()]
    wrong = Recording("wrong", 10, tuple(range(len(never))), tuple(never))
    tables = CostTables(
        verify=tuple((rows, 512, 10.0 + rows) for rows in range(1, 65)), draft=((9, 64, 1.0),)
    )
    settings = [Setting("chain", 3), Setting("tree", 4, 2)]
    _, policy = trial_policy([wrong], tables, settings, batch_size=1)
    assert policy.verdict(1) == Verdict("off", 1, 0.0, 0.0, 1.0)
    assert compare([wrong], tables, settings, batch_size=1).regret == 0.0
