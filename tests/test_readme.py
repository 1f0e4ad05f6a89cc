# SPDX-License-Identifier: Apache-2.0
"""The documentation is true: its code prints what it says; its commands and files exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from treeattn.cli.main import _parser

ROOT = Path(__file__).resolve().parents[1]
PYTHON = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
SHELL = re.compile(r"^```(?:sh)?\n(?P<lines>(?!<)[^`]*?)^```$", re.MULTILINE)
INLINE = re.compile(r"`(?P<command>(?:treeattn|make|python) [^`]+)`")
PAGES = ["README.md", "docs/concepts.md"]


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str) -> None:
    """The blocks of a page build on each other; a `text` block is what the one before it prints."""
    blocks = list(PYTHON.finditer(text_of(page)))
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], page, "exec"), scope)
        if block["printed"] is not None:
            assert printed.getvalue() == block["printed"]


@pytest.mark.parametrize("page", [*PAGES, "docs/when-trees-pay.md"])
def test_linked_files_exist(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", text_of(page))
    assert links
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def commands(page: str) -> list[list[str]]:
    """Every command line of ours on a page, comments cut."""
    text = text_of(page)
    blocks = [match["lines"] for match in SHELL.finditer(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [match["command"] for match in INLINE.finditer(text)]
    ours = [line for line in lines if line.split(" ")[0] in ("treeattn", "make", "python")]
    return [shlex.split(line, comments=True) for line in ours]


def test_commands_exist() -> None:
    """Options parse, make targets and scripts are there."""
    found = [command for page in (*PAGES, "docs/when-trees-pay.md") for command in commands(page)]
    assert {command[0] for command in found} >= {"treeattn", "make"}
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for program, *arguments in found:
        if program == "treeattn":
            _parser().parse_args(arguments)  # exits when an option is unknown
        elif program == "make":
            assert arguments[0] in targets
        elif arguments[0] != "-m":
            assert (ROOT / arguments[0]).exists()


def test_pictures_are_what_the_ops_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "docs" / "pictures"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    import make

    make.make(tmp_path)
    made = {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.svg")}
    assert made == {path.name: path.read_text("utf-8") for path in folder.glob("*.svg")}
