# SPDX-License-Identifier: Apache-2.0
"""A draft tree as lines of text, coloured when rich is installed and the output is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TextIO

from treeattn.draw.picture import Picture, visible

_STYLES = {
    "root": "bold blue",
    "accepted": "bold green",
    "bonus": "bold magenta",
    "rejected": "dim",
    "drafted": "",
}
_MARKS = {"root": "●", "accepted": "✓", "bonus": "★", "rejected": "✗", "drafted": "○"}


def to_text(picture: Picture) -> str:
    """The tree as plain text, one node a line."""
    lines = [picture.title] if picture.title else []
    return "\n".join(lines + [guide + line for guide, line, _ in _lines(picture)])


def print_tree(picture: Picture, file: TextIO | None = None) -> None:
    """Print the tree, in colour where that is possible."""
    file = file or sys.stdout
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        print(to_text(picture), file=file)
        return
    console = Console(file=file, highlight=False, soft_wrap=True)
    if picture.title:
        console.print(Text(picture.title, style="bold"))
    for guide, line, kind in _lines(picture):
        console.print(Text.assemble((guide, "dim"), (line, _STYLES[kind])))


def _lines(picture: Picture) -> Iterator[tuple[str, str, str]]:
    """(guide, text, kind) of each line, depth first."""
    yield "", _line(picture, 0), "root"
    yield from _below(picture, 0, "")


def _below(picture: Picture, node: int, indent: str) -> Iterator[tuple[str, str, str]]:
    children = picture.children(node)
    has_bonus = picture.bonus is not None and node == picture.accepted[-1]
    for child in children:
        last = child == children[-1] and not has_bonus
        yield indent + ("└─ " if last else "├─ "), _line(picture, child), picture.kind(child)
        yield from _below(picture, child, indent + ("   " if last else "│  "))
    if has_bonus:
        assert picture.bonus is not None
        yield indent + "└─ ", f"{_MARKS['bonus']} {visible(picture.bonus)}  bonus", "bonus"


def _line(picture: Picture, node: int) -> str:
    probability = picture.probability(node)
    number = "" if probability is None else f"  {probability:.2f}"
    return f"{_MARKS[picture.kind(node)]} {picture.text(node)}{number}"
