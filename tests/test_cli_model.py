# SPDX-License-Identifier: Apache-2.0
"""The command line on the real model: generate and demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.eagle import random_head, save_head
from treeattn.cli import main
from treeattn.cli.demo import Run, _numbers, _table
from treeattn.cli.model import model_path
from treeattn.decoder import Decoder

pytestmark = [pytest.mark.model, pytest.mark.slow]
PROMPT = "Repeat after me: one two three, one two three, one two three."


@pytest.fixture(scope="module")
def loaded() -> Decoder:
    return Decoder.from_pretrained(model_path(None))


@pytest.fixture
def load_once(loaded: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most commands of this file share one decoder; those without this fixture load their own."""
    monkeypatch.setattr("treeattn.cli.generate.load_decoder", lambda args: loaded)


def generate(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["generate", PROMPT, "--max-new-tokens", "20", "--json", *options]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


@pytest.mark.usefixtures("load_once")
def test_every_drafter_gives_the_tokens_of_plain_decoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"hidden_size": 576, "vocab_size": 49152}
    head = str(save_head(tmp_path, random_head(**sizes), **sizes))
    plain = generate(capsys, "--drafter", "none")
    assert plain["stats"]["drafted"] == 0
    for options in (["--tree", "--nodes", "8"], ["--chain"], ["--drafter", "lookup"]):
        drafted = generate(capsys, *options)
        assert drafted["tokens"] == plain["tokens"] and drafted["text"] == plain["text"]
        assert drafted["stats"]["drafted"] > 0
        assert drafted["stats"]["tokens_per_step"] > 1
    drafted = generate(capsys, "--drafter", "eagle", "--draft-head", head, "--nodes", "8")
    assert drafted["tokens"] == plain["tokens"] and drafted["stats"]["drafted"] > 0


def test_stream_prints_the_same_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    whole = generate(capsys)
    assert main(["generate", "--file", str(file), "--max-new-tokens", "20"]) == 0
    assert capsys.readouterr().out == whole["text"] + "\n"


@pytest.mark.usefixtures("load_once")
def test_a_seed_makes_sampling_repeatable_whatever_the_draft(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampled = ["--temperature", "0.8", "--top-k", "40", "--seed", "7"]
    first = generate(capsys, *sampled)
    assert generate(capsys, *sampled, "--drafter", "none")["tokens"] == first["tokens"]
    assert generate(capsys, *sampled[:-1], "8")["tokens"] != first["tokens"]


@pytest.mark.usefixtures("load_once")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "0"], "num_nodes"),
        (["--temperature", "-1"], "temperature"),
        (["--max-new-tokens", "-1"], "max_new_tokens"),
        (["--drafter", "no-such"], "--drafter must be one of none, lookup"),
        (["--drafter", "eagle"], "--drafter eagle and --draft-head FOLDER go together"),
        (["--draft-head", "no-such"], "go together, got --drafter suffix with a head"),
        (["--drafter", "eagle", "--draft-head", "no-such"], "no-such is no draft head"),
    ],
)
def test_bad_options(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", PROMPT, *options]) == 2
    assert words in capsys.readouterr().err


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers_file, picture = tmp_path / "numbers.json", tmp_path / "tree.svg"
    assert main(["demo", "--quick", "--json", str(numbers_file), "--svg", str(picture)]) == 0
    output = capsys.readouterr().out
    assert "drafted tokens accepted" in output and "★" in output
    assert "identical to plain" in output and "tokens/step" in output
    assert picture.read_text().startswith("<svg ")
    variants = json.loads(numbers_file.read_text())["variants"]
    assert list(variants) == ["torch", "plain", "chain", "tree"]
    for name in ("plain", "chain", "tree"):
        assert variants[name]["identical_to_plain"]
        assert set(variants[name]["seconds"]) == {"prefill", "draft", "verify", "accept", "remap"}
    assert variants["plain"]["tokens_per_step"] == 1
    assert variants["tree"]["tokens_per_step"] > 1.2


def test_table_says_no_when_outputs_differ() -> None:
    plain = Run(outputs=[[1, 2]], steps=2, wall=1.0)
    other = Run(outputs=[[1, 3]], steps=1, wall=0.5)
    report = {
        "prompts": ["p"],
        "dtype": "float32",
        "max_new_tokens": 2,
        "nodes": 16,
        "drafter": "a suffix trie",
        "variants": {
            "plain": _numbers([plain], plain.outputs),
            "tree": _numbers([other], plain.outputs),
        },
    }
    plain_row, tree_row = _table(report).splitlines()[-2:]
    assert plain_row.endswith("yes") and tree_row.endswith("no")
    assert "2.00x" in tree_row and "4.0" in tree_row
