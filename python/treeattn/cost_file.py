# SPDX-License-Identifier: Apache-2.0
"""Cost tables on disk: what was measured, where, and what was only assumed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
    batches: tables of batches of so many requests, where they were measured apart; see `at`.
    """

    verify: Rows
    draft: Rows = ()
    accept: Rows = ()
    remap: Rows = ()
    about: Mapping[str, str] = field(default_factory=dict)
    batches: Mapping[int, CostTables] = field(default_factory=dict)

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
        if self.batches and min(self.batches) < 1:
            raise ValueError(f"batches must be sizes >= 1, got {sorted(self.batches)}")

    def at(self, batch_size: int) -> CostTables:
        """Those measured at the next batch size that is not smaller; these where none were
        measured apart. Raises ValueError for a batch larger than any measured."""
        if not self.covers(batch_size):
            raise ValueError(f"batch_size must be at most {max(self.batches)}, got {batch_size}")
        enough = [size for size in self.batches if size >= batch_size]
        return self.batches[min(enough)] if enough else self

    def covers(self, batch_size: int) -> bool:
        """Whether a batch of this size was measured, or a larger one, or batches make none."""
        return not self.batches or batch_size <= max(self.batches)

    @cached_property
    def costs(self) -> StepCosts:
        """What the scheduler reads."""
        return StepCosts(
            verify=_staircase(self.verify),
            draft=_staircase(self.draft) if self.draft else None,
            accept=_staircase(self.accept) if self.accept else None,
            remap=_staircase(self.remap) if self.remap else None,
        )

    @cached_property
    def costs_once_drafted(self) -> StepCosts:
        """What is left of a step whose drafts are there already."""
        return replace(self.costs, draft=None)

    @cached_property
    def max_context(self) -> int:
        """The longest context that was measured; 1 when no point holds a time."""
        return max((int(point[1]) for point in self.verify if is_time(point[-1])), default=1)

    def to_json(self) -> dict[str, Any]:
        tables = {name: [list(point) for point in getattr(self, name)] for name in COLUMNS}
        data = {
            "columns": {name: list(names) for name, names in COLUMNS.items()},
            **tables,
            "about": dict(self.about),
        }
        if self.batches:  # each without what it has from here
            data["batches"] = {
                str(size): {
                    name: value
                    for name, value in self.batches[size].to_json().items()
                    if value != data[name]
                }
                for size in sorted(self.batches)
            }
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostTables:
        """A part of "batches" takes from the whole what it leaves out.

        Raises ValueError naming the table and the point that is wrong.
        """
        if not isinstance(data, Mapping) or "verify" not in data:
            raise ValueError(f"cost tables must have the table verify, got {data!r:.80}")
        for name, columns in data.get("columns", {}).items():
            if tuple(columns) != COLUMNS.get(name):
                raise ValueError(
                    f"columns of {name} must be {COLUMNS.get(name)}, got {tuple(columns)}"
                )
        tables = {name: _rows(name, data.get(name, [])) for name in COLUMNS}
        whole = {name: value for name, value in data.items() if name != "batches"}
        batches = {
            int(size): cls.from_json({**whole, **part}) for size, part in _batches(data).items()
        }
        return cls(**tables, about=dict(data.get("about", {})), batches=batches)

    @classmethod
    def load(cls, path: Path, *, batch_size: int | None = None) -> CostTables:
        """From a file of cost tables, or from a policy file, which has them under "costs".

        batch_size: the tables for batches of that size, see `at`. A file may have tables by batch
        size only: {"batches": {"1": tables, ...}, "about": of those without their own}. Where the
        file makes no difference, neither does `batch_size`.
        Raises FileNotFoundError, or ValueError naming the file and what is wrong with it.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict):
                data = _of_batch(data.get("costs", data), batch_size)
            tables = cls.from_json(data)
            return tables if batch_size is None else tables.at(batch_size)
        except ValueError as error:
            raise ValueError(f"costs {path}: {error}") from error

    def source(self, name: str) -> str:
        """Where the numbers of a table come from: "measured", "assumed", or "unknown"."""
        return source(self.about.get(name, ""))


def source(note: str) -> str:
    """What a note of `about` begins with: "measured", "assumed", or anything else: "unknown"."""
    return next((kind for kind in ("measured", "assumed") if note.startswith(kind)), "unknown")


def _of_batch(data: Any, batch_size: int | None) -> Any:
    """The tables for one batch size, where there are none but for each."""
    if not isinstance(data, dict) or "batches" not in data or "verify" in data:
        return data
    batches = _batches(data)
    sizes = sorted(map(int, batches))
    if batch_size is None:
        raise ValueError(f"batch_size must be given, the tables are by batch size: {sizes}")
    enough = [size for size in sizes if size >= batch_size]
    if not enough:
        raise ValueError(f"batch_size must be at most {max(sizes, default=0)}, got {batch_size}")
    return {"about": data.get("about", {}), **batches[str(enough[0])]}


def _batches(data: Mapping[str, Any]) -> Mapping[str, Any]:
    batches = data.get("batches", {})
    if not isinstance(batches, dict) or not all(
        size.isdecimal() and isinstance(tables, dict) and "batches" not in tables
        for size, tables in batches.items()
    ):
        raise ValueError(f"batches must hold tables by batch size, got {batches!r:.80}")
    return batches


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
