# SPDX-License-Identifier: Apache-2.0
"""A draft tree as lines of text, coloured when rich is installed and the output is a terminal.

A run of only children shares one line, so a deep and narrow tree stays readable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from treeattn.draw.picture import Picture, visible, width

_STYLES = {
    "root": "bold blue",
    "accepted": "bold green",
    "bonus": "bold magenta",
    "rejected": "dim",
    "drafted": "",
}
_MARKS = {"root": "●", "accepted": "✓", "bonus": "★", "rejected": "✗", "drafted": "○"}
_MAX_COLUMNS = 88  # a longer run continues on the next line, one level deeper


@dataclass(frozen=True)
class _Line:
    guide: str
    nodes: list[tuple[str, str]]  # text and kind of each node of the run

    def __str__(self) -> str:
        return self.guide + " ─ ".join(text for text, _ in self.nodes)


def to_text(picture: Picture) -> str:
    """The tree as plain text."""
    lines = [picture.title] if picture.title else []
    return "\n".join(lines + [str(line) for line in _lines(picture)])


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
    for line in _lines(picture):
        text = Text(line.guide, style="dim")
        for index, (node, kind) in enumerate(line.nodes):
            text.append(" ─ " if index else "", style="dim")
            text.append(node, style=f"not dim {_STYLES[kind]}" if kind != "rejected" else "dim")
        console.print(text)


def _lines(picture: Picture) -> Iterator[_Line]:
    yield from _subtree(picture, 0, "", "")


def _subtree(picture: Picture, node: int, guide: str, indent: str) -> Iterator[_Line]:
    """The lines of one subtree, depth first; `indent` leads those below its first line."""
    run = [(_node(picture, node), picture.kind(node))]
    columns = width(guide) + width(run[0][0])
    below = _below(picture, node)
    while len(below) == 1:
        text, kind, child = below[0]
        columns += 3 + width(text)
        if columns > _MAX_COLUMNS:
            break
        run.append((text, kind))
        below = [] if child is None else _below(picture, child)
    yield _Line(guide, run)
    for index, (text, kind, child) in enumerate(below):
        last = index == len(below) - 1
        child_guide = indent + ("└─ " if last else "├─ ")
        if child is None:
            yield _Line(child_guide, [(text, kind)])
        else:
            yield from _subtree(picture, child, child_guide, indent + ("   " if last else "│  "))


def _below(picture: Picture, node: int) -> list[tuple[str, str, int | None]]:
    """Text, kind and id of what hangs below a node: its children, and the bonus (no id)."""
    below: list[tuple[str, str, int | None]] = [
        (_node(picture, child), picture.kind(child), child) for child in picture.children(node)
    ]
    if picture.bonus is not None and node == picture.accepted[-1]:
        below.append((f"{_MARKS['bonus']} {visible(picture.bonus)} (bonus)", "bonus", None))
    return below


def _node(picture: Picture, node: int) -> str:
    probability = picture.probability(node)
    number = "" if probability is None or probability >= 0.995 else f" {probability:.2f}"
    return f"{_MARKS[picture.kind(node)]} {picture.text(node)}{number}"
