# SPDX-License-Identifier: Apache-2.0
"""`treeattn tune` and `treeattn generate --policy` on a tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny import CHARACTERS
from support.tuning import copying_prompts, save_checkpoint, small_tables
from treeattn.cli import main
from treeattn.cli import tune as tune_cli
from treeattn.cli.tune import _entries
from treeattn.cost_file import CostTables
from treeattn.schedule import Policy, Verdict
from treeattn.tune import run as run_module


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """One prompt as ids, one as text."""
    ids, others = copying_prompts()[:2]
    text = "".join(CHARACTERS[token] for token in others)
    return save(
        tmp_path,
        [
            {"name": "ids", "kind": "copy", "prompt_ids": ids},
            {"name": "text", "prompt": text},
        ],
    )


def save(folder: Path, entries: Any) -> Path:
    file = folder / "prompts.json"
    file.write_text(json.dumps(entries))
    return file


def tune(model: Path, prompts: Path, out: Path, *options: str) -> int:
    few = ["--max-new-tokens", "6", "--batch-sizes", "1"]
    return main(
        [
            "tune",
            "--model",
            str(model),
            "--prompts",
            str(prompts),
            "--out",
            str(out),
            *few,
            *options,
        ]
    )


@pytest.fixture
def must_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(args: Any) -> Any:
        raise AssertionError("the model is loaded before the options are checked")

    monkeypatch.setattr(tune_cli, "load_decoder", load)


def test_tune_then_generate(
    model: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_tables(monkeypatch)
    out, report = tmp_path / "policy.json", tmp_path / "report"
    assert tune(model, prompts, out, "--report", str(report)) == 0
    printed = capsys.readouterr()
    assert "- batch 1: **" in printed.out
    assert f"use it: treeattn generate --policy {out}" in printed.out
    assert (
        printed.err.startswith("[1/") and " s left)" in printed.err
    )  # progress, where no terminal
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"policy.json", "policy.json.measured", "prompts.json", "report"}
    assert {"report.md", "trials.csv"} <= {path.name for path in report.iterdir()}
    policy = Policy.load(out)
    assert list(policy.verdicts) == [1] and policy.drafter == "suffix"
    assert policy.about["model"].startswith("tiny, ") and policy.about["dtype"] == "float32"

    # Once more: all is known, and nothing changes.
    first = out.read_bytes()
    assert tune(model, prompts, out) == 0
    parts = [line.partition(" (about")[0] for line in capsys.readouterr().err.splitlines()]
    assert all(part.endswith(": known") for part in parts)
    assert out.read_bytes() == first

    # What was measured belongs to one run.
    assert tune(model, prompts, out, "--seed", "5") == 2
    assert "seed was 0, now it is 5" in capsys.readouterr().err

    text = json.loads(prompts.read_text())[1]["prompt"]
    common = ["generate", text, "--model", str(model), "--max-new-tokens", "12", "--json"]
    assert main([*common, "--drafter", "none"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*common, "--policy", str(out)]) == 0
    followed = json.loads(capsys.readouterr().out)
    assert followed["tokens"] == plain["tokens"] and len(plain["tokens"]) == 12


def test_generate_follows_the_policy(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fewer steps than without drafts."""
    file = tmp_path / "policy.json"
    verdict = Verdict("tree", 8, draft_ms=0.0, accepted=2.0, speedup=2.0)
    Policy({1: verdict}, CostTables(((8, 256, 1.0),)), "suffix").save(file)
    text = "".join(CHARACTERS[token] for token in copying_prompts()[0])
    common = ["generate", text, "--model", str(model), "--max-new-tokens", "20", "--json"]
    steps = {}
    for name, options in {
        "one": ["--nodes", "1"],
        "policy": ["--policy", str(file)],
    }.items():
        assert main([*common, *options]) == 0
        steps[name] = json.loads(capsys.readouterr().out)["stats"]["steps"]
    assert steps["one"] == 20 and steps["policy"] < 15


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_generate_without_a_usable_policy(
    content: str | None, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.json"
    if content is not None:
        file.write_text(content)
    assert main(["generate", "abc", "--model", str(model), "--policy", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("treeattn generate: ") and f"policy {file}: " in error
    assert ("no such file" in error) == (content is None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--drafter", "suffix"], "was tuned with --drafter lookup, got suffix"),
        (["--dtype", "bfloat16"], "was tuned with --dtype float32, got bfloat16"),
        (["--nodes", "4"], "--policy decides what --nodes would, got both"),
        (["--chain"], "--policy decides what --tree or --chain would, got both"),
        ([], None),  # the policy's drafter is the default
    ],
)
def test_what_goes_with_a_policy(
    options: list[str],
    words: str | None,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "policy.json"
    verdict = Verdict("off", 1, draft_ms=0.0, accepted=0.0, speedup=1.0)
    costs = CostTables(((1, 1, 1.0),))
    Policy({1: verdict}, costs, "lookup", about={"dtype": "float32"}).save(file)
    common = ["generate", "abc", "--model", str(model), "--max-new-tokens", "3"]
    status = main([*common, "--policy", str(file), *options])
    assert status == (0 if words is None else 2)
    assert words is None or words in capsys.readouterr().err


@pytest.mark.usefixtures("must_not_load")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch-sizes", "nonsense"], "--batch-sizes must be numbers >= 1"),
        (["--batch-sizes", ""], "--batch-sizes must be numbers >= 1"),
        (["--batch-sizes", "0,4"], "--batch-sizes must be numbers >= 1"),
        (["--batch-sizes", "1,2.5"], "got '1,2.5'"),
        (["--batch-sizes", "999"], "batch_sizes must be in [1, 128], got (999,)"),
        (["--drafter", "layer_skip"], "--drafter must be one of suffix, lookup, eagle or a path"),
        (["--drafter", "none"], "or a path, got none"),
        (["--max-new-tokens", "0"], "max_new_tokens must be >= 1, got 0"),
        (["--max-step-ms", "-1"], "max_step_ms must be > 0, got -1.0"),
        (["--prompts", "no/such.json"], "--prompts no/such.json must be a JSON file: "),
        (["--out", "no/such/policy.json"], "--out no/such/policy.json must lie in a folder"),
        (["--report", __file__], "must be a folder, it is a file"),
    ],
)
def test_bad_options(
    options: list[str],
    words: str,
    model: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused before the model is loaded, and without a file left behind."""
    assert tune(model, prompts, tmp_path / "policy.json", *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("treeattn tune: ") and words in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.json"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--drafter", "no/such"], "--drafter must be one of"),
        (["--drafter", "eagle"], "--drafter eagle and --draft-head FOLDER go together"),
        (["--draft-head", "head"], "go together, got --drafter suffix with a head"),
        (["--model", "no/such"], "--model no/such does not exist"),
    ],
)
def test_bad_model_or_drafter(
    options: list[str],
    words: str,
    model: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tune(model, prompts, tmp_path / "policy.json", *options) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.json"]


@pytest.mark.usefixtures("must_not_load")
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "must hold a list of at least one prompt"),
        ({"name": "a", "prompt": "b"}, "must hold a list of at least one prompt"),
        (["a"], "entry 0 must be an object with a name, got 'a'"),
        ([{"name": "a", "prompt": "b"}, {"prompt": "c"}], "entry 1 must be an object with a name"),
        ([{"name": 3, "prompt": "b"}], "entry 0 must be an object with a name"),
        ([{"name": "a"}], "entry 0 (a) must have a prompt, a text, or prompt_ids"),
        ([{"name": "a", "prompt": 7}], "entry 0 (a) must have a prompt"),
        ([{"name": "a", "prompt_ids": "12"}], "entry 0 (a) must have a prompt"),
        ([{"name": "a", "prompt_ids": [1, 2.5]}], "entry 0 (a) must have a prompt"),
        ([{"name": "a", "prompt_ids": [True]}], "entry 0 (a) must have a prompt"),
        (
            [{"name": "a", "prompt": "b", "kind": "odd"}],
            "entry 0 (a): kind must be one of copy, mixed, free, got 'odd'",
        ),
        (
            [{"name": "a", "prompt": "b"}, {"name": "a", "prompt": "c"}],
            "entry 1 (a): names must differ",
        ),
    ],
)
def test_bad_prompts(
    entries: Any, words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path, entries)
    assert tune(model, file, tmp_path / "policy.json") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"treeattn tune: --prompts {file}") and words in error


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "a: must have 1 to 255 tokens, got 0"),
        ([1] * 256, "a: must have 1 to 255 tokens, got 256"),
        ([1, 64], "a: ids must be in [0, 64)"),
        ([-1], "a: ids must be in [0, 64)"),
    ],
)
def test_prompts_that_do_not_fit_the_model(
    ids: list[int], words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path, [{"name": "a", "prompt_ids": ids}])
    assert tune(model, file, tmp_path / "policy.json") == 2
    assert f"--prompts, {words}" in capsys.readouterr().err
    assert not (tmp_path / "policy.json.measured").exists()


def test_text_needs_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_checkpoint(tmp_path / "tiny")
    (model / "tokenizer.json").unlink()
    file = save(tmp_path, [{"name": "a", "prompt": "b"}])
    assert tune(model, file, tmp_path / "policy.json") == 2
    assert "--prompts are text, but the checkpoint has no tokenizer" in capsys.readouterr().err


def test_the_prompts_that_come_with_the_package() -> None:
    """Ten kinds, with copying, mixed and free text among them."""
    entries = _entries(None)
    assert len(entries) == 10
    assert {entry["kind"] for entry in entries} == set(tune_cli.KINDS)


def test_ctrl_c(
    model: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 130, and what was measured is kept; it says where."""

    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    small_tables(monkeypatch)
    monkeypatch.setattr(run_module, "draft_costs", interrupted)
    assert tune(model, prompts, tmp_path / "policy.json") == 130
    assert (tmp_path / "policy.json.measured").read_text().count('["steps, batch 1", ') == 1
    assert f"goes on from {tmp_path / 'policy.json.measured'}" in capsys.readouterr().err
    assert not (tmp_path / "policy.json").exists()
