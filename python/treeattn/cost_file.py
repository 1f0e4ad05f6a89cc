# SPDX-License-Identifier: Apache-2.0
"""Cost tables on disk: what was measured, where, and what was only assumed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from treeattn.cost import Staircase, StepCosts, is_time

Rows: TypeAlias = tuple[tuple[float, ...], ...]
COLUMNS = {
    "verify": ("rows", "context", "ms"),
    "draft": ("level", "width", "ms"),
    "accept": ("rows", "ms"),
    "remap": ("rows", "ms"),
}


@dataclass(frozen=True)
class CostTables:
    """The parts of a step as tables of points, each ending with milliseconds (see `StepCosts`).

    verify: (rows, context, ms), rows being the nodes of the whole batch. draft: (level, width, ms),
        level from 1, width being the nodes of the whole batch asked at it; empty: takes no time.
    accept, remap: (rows, ms).
    about: for each table, where its numbers come from; starts with "measured" or "assumed".
    """

    verify: Rows
    draft: Rows = ()
    accept: Rows = ()
    remap: Rows = ()
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, columns in COLUMNS.items():
            for point in getattr(self, name):
                if len(point) != len(columns):
                    raise ValueError(
                        f"{name} must hold points ({', '.join(columns)}), got {tuple(point)}"
                    )
                if not all(size >= 1 and float(size).is_integer() for size in point[:-1]):
                    raise ValueError(
                        f"{name} must have whole numbers >= 1 for {' and '.join(columns[:-1])}, "
                        f"got {tuple(point)}"
                    )
        if not self.verify:
            raise ValueError("verify must hold at least one point (rows, context, ms)")

    @property
    def costs(self) -> StepCosts:
        """What the scheduler reads."""
        return StepCosts(
            verify=_staircase(self.verify),
            draft=_staircase(self.draft) if self.draft else None,
            accept=_staircase(self.accept) if self.accept else None,
            remap=_staircase(self.remap) if self.remap else None,
        )

    @property
    def max_context(self) -> int:
        """The longest context that was measured; 1 when no point holds a time."""
        return max((int(point[1]) for point in self.verify if is_time(point[-1])), default=1)

    def to_json(self) -> dict[str, Any]:
        tables = {name: [list(point) for point in getattr(self, name)] for name in COLUMNS}
        return {"columns": {name: list(names) for name, names in COLUMNS.items()}, **tables} | {
            "about": dict(self.about)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostTables:
        """Raises ValueError naming the table and the point that is wrong."""
        if not isinstance(data, Mapping) or "verify" not in data:
            raise ValueError(f"cost tables must have the table verify, got {data!r:.80}")
        for name, columns in data.get("columns", {}).items():
            if tuple(columns) != COLUMNS.get(name):
                raise ValueError(
                    f"columns of {name} must be {COLUMNS.get(name)}, got {tuple(columns)}"
                )
        tables = {name: _rows(name, data.get(name, [])) for name in COLUMNS}
        return cls(**tables, about=dict(data.get("about", {})))

    @classmethod
    def load(cls, path: Path, *, batch_size: int | None = None) -> CostTables:
        """From a file of cost tables, or from a policy file, which has them under "costs".

        batch_size: of a file with tables by batch size, {"batches": {"1": tables, ...}, "about":
        of those without their own}, the tables of the next size that is not smaller. Where the
        file makes no difference, neither does `batch_size`.
        Raises FileNotFoundError, or ValueError naming the file and what is wrong with it.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict):
                data = _of_batch(data.get("costs", data), batch_size)
            return cls.from_json(data)
        except ValueError as error:
            raise ValueError(f"costs {path}: {error}") from error

    def source(self, name: str) -> str:
        """Where the numbers of a table come from: "measured", "assumed", or "unknown"."""
        return source(self.about.get(name, ""))


def source(note: str) -> str:
    """What a note of `about` begins with: "measured", "assumed", or anything else: "unknown"."""
    return next((kind for kind in ("measured", "assumed") if note.startswith(kind)), "unknown")


def _of_batch(data: Any, batch_size: int | None) -> Any:
    """The tables for one batch size, where there are some for each."""
    batches = data.get("batches") if isinstance(data, dict) else None
    if batches is None:
        return data
    if not isinstance(batches, dict) or not all(
        size.isdecimal() and isinstance(tables, dict) for size, tables in batches.items()
    ):
        raise ValueError(f"batches must hold tables by batch size, got {batches!r:.80}")
    sizes = sorted(map(int, batches))
    if batch_size is None:
        raise ValueError(f"batch_size must be given, the tables are by batch size: {sizes}")
    enough = [size for size in sizes if size >= batch_size]
    if not enough:
        raise ValueError(f"batch_size must be at most {max(sizes, default=0)}, got {batch_size}")
    return {"about": data.get("about", {}), **batches[str(enough[0])]}


def _rows(name: str, points: Sequence[Sequence[float]]) -> Rows:
    if not isinstance(points, list):
        raise ValueError(f"{name} must be a list of points, got {points!r:.80}")
    for point in points:
        if not isinstance(point, list) or not all(map(_is_number, point)):
            raise ValueError(f"{name} must hold points of numbers, got {point!r:.80}")
    return tuple(tuple(float(number) for number in point) for point in points)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _staircase(points: Rows) -> Staircase:
    return Staircase({tuple(int(size) for size in point[:-1]): point[-1] for point in points})
