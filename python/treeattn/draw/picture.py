# SPDX-License-Identifier: Apache-2.0
"""What a picture of a draft tree shows, and where it can come from."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_KEYS = ("tokens", "parents", "labels", "scores", "accepted", "bonus", "title")
_MAX_WIDTH = 24


@dataclass(frozen=True)
class Picture:
    """A tree ready to be drawn; node 0 is the root.

    labels: one text per node. parents: parent of each node, -1 for the root, parents[i] < i.
    scores: log probability of the path from the root to each node, or None.
    accepted: the accepted node ids, root first; empty when nothing was verified yet.
    bonus: the text of the token that the target added after the last accepted node.
    Raises ValueError naming the argument when these do not describe one tree.
    """

    labels: tuple[str, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    accepted: tuple[int, ...] = ()
    bonus: str | None = None
    title: str = ""
    _children: tuple[list[int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = len(self.parents)
        if count == 0:
            raise ValueError("parents must name at least the root, got []")
        for name, values in (("labels", self.labels), ("scores", self.scores)):
            if values is not None and len(values) != count:
                raise ValueError(f"{name} must have one entry per node, {count}, got {len(values)}")
        for node, parent in enumerate(self.parents):
            if parent != -1 if node == 0 else not 0 <= parent < node:
                rule = "-1 for node 0" if node == 0 else "in [0, node) for every other node"
                raise ValueError(f"parents must be {rule}, got parents[{node}] = {parent}")
        for step, node in enumerate(self.accepted):
            above = self.accepted[step - 1] if step else -1
            if not 0 <= node < count or self.parents[node] != above:
                raise ValueError(f"accepted must be a path from the root, got {self.accepted}")
        if self.bonus is not None and not self.accepted:
            raise ValueError("bonus needs accepted, the path that it follows")
        children: tuple[list[int], ...] = tuple([] for _ in self.parents)
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        object.__setattr__(self, "_children", children)

    def children(self, node: int) -> list[int]:
        """Child ids in draft order."""
        return self._children[node]

    def probability(self, node: int) -> float | None:
        """The draft's probability of this node given its parent; None when unknown."""
        if self.scores is None or node == 0:
            return None
        return math.exp(min(0.0, self.scores[node] - self.scores[self.parents[node]]))

    def kind(self, node: int) -> str:
        """`root`, `accepted`, `rejected`, or `drafted` when nothing was verified yet."""
        if node == 0:
            return "root"
        if not self.accepted:
            return "drafted"
        return "accepted" if node in self.accepted else "rejected"

    def text(self, node: int) -> str:
        return visible(self.labels[node])


def visible(label: str) -> str:
    """A token as one short line: blanks and line breaks get a sign, long ones are cut."""
    text = "".join(_VISIBLE.get(char, char if char.isprintable() else "�") for char in label)
    if width(text) <= _MAX_WIDTH:
        return text or "∅"
    kept = ""
    for char in text:
        if width(kept + char) >= _MAX_WIDTH:
            break
        kept += char
    return kept + "…"


def width(text: str) -> int:
    """Columns of a monospaced font: wide characters count two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def from_paths(paths: Sequence[str]) -> Picture:
    """A tree from its paths: words separated by blanks, the same first word in every path."""
    labels: list[str] = []
    parents: list[int] = []
    node_of: dict[tuple[str, ...], int] = {}
    for path in paths:
        words = path.split()
        if not words:
            raise ValueError("a path must have at least one word, got an empty one")
        if labels and words[0] != labels[0]:
            raise ValueError(f"paths must share their first word, got {labels[0]} and {words[0]}")
        for depth in range(len(words)):
            prefix = tuple(words[: depth + 1])
            if prefix in node_of:
                continue
            node_of[prefix] = len(labels)
            labels.append(words[depth])
            parents.append(node_of[prefix[:-1]] if depth else -1)
    return Picture(tuple(labels), tuple(parents))


def from_json(data: Any) -> Picture:
    """A tree from decoded JSON.

    {"tokens": [9, 4, 7], "parents": [-1, 0, 0],                 parents is the only required key
     "labels": [" the", " cat", " dog"], "scores": [0, -0.2, -2], "accepted": [0, 1],
     "bonus": " sat", "title": "step 3"}
    Without labels the token ids are shown, without tokens the node ids. `bonus` may be an id.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"the tree must be a JSON object, got {type(data).__name__}")
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        raise ValueError(f"the tree has unknown keys {unknown}; known are {', '.join(_KEYS)}")
    if "parents" not in data:
        raise ValueError("the tree must have the key parents")
    parents = _numbers(data, "parents")
    tokens = _numbers(data, "tokens") if data.get("tokens") is not None else range(len(parents))
    labels = data.get("labels")
    names = tokens if labels is None else labels
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"labels must be a list of texts, got {names!r}")
    scores = None if data.get("scores") is None else _numbers(data, "scores")
    bonus = data.get("bonus")
    return Picture(
        labels=tuple(str(name) for name in names),
        parents=tuple(int(parent) for parent in parents),
        scores=None if scores is None else tuple(float(score) for score in scores),
        accepted=tuple(int(node) for node in _numbers(data, "accepted")),
        bonus=None if bonus is None else str(bonus),
        title=str(data.get("title") or ""),
    )


def _numbers(data: Mapping[str, Any], key: str) -> Sequence[float]:
    values = data.get(key) or []
    if not isinstance(values, list) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    ):
        raise ValueError(f"{key} must be a list of numbers, got {values!r}")
    return values
