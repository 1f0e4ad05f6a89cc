# SPDX-License-Identifier: Apache-2.0
"""The result as terminal text, JSON, Markdown and CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import derived
from bench.calibrate import Calibration
from bench.goals import Goal
from bench.memory import Memory
from bench.row import Row

HEADER = (
    *("item", "case", "ours us", "p20", "p80", "n", "floor us", "/floor"),
    *("best peer", "peer us", "peer/ours", "gather us", "other load", "valid"),
)


def as_json(
    calibration: Calibration, rows: Sequence[Row], goals: Sequence[Goal], memory: Memory | None
) -> dict[str, Any]:
    """Plain data; `rows` and `goals` carry at least the fields that docs/benchmarks.md names."""
    return {
        "calibration": calibration.as_dict(),
        "rows": [row.as_dict() for row in rows],
        "goals": [goal.as_dict() for goal in goals],
        "derived": derived.summary(rows),
        "memory": None if memory is None else {"plan": memory.plan, "attention": memory.attention},
    }


def text(calibration: Calibration, rows: Sequence[Row], goals: Sequence[Goal]) -> str:
    """What the terminal shows."""
    parts = [*_ceilings(calibration), "", plain(HEADER, [cells(row) for row in rows])]
    invalid = sum(not row.valid for row in rows)
    if invalid:
        parts.append(
            f"{invalid} of {len(rows)} rows are invalid: others used 8% of the machine or more. "
            "They judge nothing."
        )
    if not all(row.floor_valid for row in rows):
        parts.append("?: the ceiling behind this floor was unsteady; the ratio judges nothing.")
    numbers = derived.summary(rows)
    if numbers:
        parts += ["", *(f"{name}: {value:.3g}" for name, value in numbers.items())]
    return "\n".join([*parts, "", plain(_GOAL_HEADER, _goal_cells(goals))])


def write(
    folder: Path, calibration: Calibration, rows: Sequence[Row], goals: Sequence[Goal]
) -> None:
    """report.md, rows.csv and the plots."""
    from bench import plots

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        names = [name for name in Row.__dataclass_fields__ if name not in _NESTED]
        peers = sorted({peer for row in rows for peer in row.peers})
        writer.writerow([*names, *(f"{peer}_us" for peer in peers)])
        for row in rows:
            values = row.as_dict()
            writer.writerow([values[name] for name in names] + [row.peers.get(p) for p in peers])
    pictures, missing = plots.draw(folder, rows)
    (folder / "report.md").write_text(
        markdown(calibration, rows, goals, pictures, missing), encoding="utf-8"
    )


_NESTED = ("peers", "skipped", "extra", "params")


def markdown(
    calibration: Calibration,
    rows: Sequence[Row],
    goals: Sequence[Goal],
    pictures: Sequence[str],
    missing: str | None,
) -> str:
    """`pictures`: file names beside the report; `missing`: why there are none."""
    parts = ["# CPU benchmarks", "", *(f"- {line}" for line in _ceilings(calibration))]
    parts += ["", "## Goals", "", table(_GOAL_HEADER, _goal_cells(goals))]
    numbers = derived.summary(rows)
    if numbers:
        parts += ["", "## Slopes and ratios", ""]
        parts.append(table(("what", "value"), [(k, f"{v:.3g}") for k, v in numbers.items()]))
    for picture in pictures:
        parts += ["", f"![{picture.removesuffix('.png').replace('-', ' ')}]({picture})"]
    if missing:
        parts += ["", missing]
    parts += ["", "## Rows", "", table(HEADER, [cells(row) for row in rows])]
    reasons = sorted({f"{peer}: {why}" for row in rows for peer, why in row.skipped.items()})
    if reasons:
        parts += ["", "## Peers that were left out", "", *(f"- {reason}" for reason in reasons)]
    return "\n".join(parts) + "\n"


def _ceilings(calibration: Calibration) -> list[str]:
    lines = [
        f"{calibration.cpu}, {calibration.cores} cores, {calibration.isa}, torch "
        f"{calibration.torch}",
        f"bf16 ceiling: {calibration.bf16_ceiling}",
    ]
    for threads in calibration.threads:
        rates = [("DRAM read", "GB/s", calibration.read[threads])]
        for isa, by_threads in calibration.fma.items():
            rates.append((f"{isa} fp32 FMA", "GFLOP/s", by_threads[threads]))
        for isa, by_threads in calibration.dot.items():
            rates.append((f"{isa} bf16 dot", "GFLOP/s", by_threads[threads]))
        shown = (
            f"{name} {c.best:.1f} {unit} (median -{100 * c.spread:.0f}%"
            + ("" if c.steady else ", unsteady")
            + ")"
            for name, unit, c in rates
        )
        lines.append(f"{threads} thread{'s' if threads > 1 else ''}: " + ", ".join(shown))
    return lines


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.item,
        row.case,
        number(row.ours_us),
        number(row.p20_us),
        number(row.p80_us),
        str(row.n),
        number(row.floor_us),
        number(row.over_floor) + ("" if row.floor_valid else "?"),
        row.best_peer or "",
        number(row.best_peer_us),
        number(row.over_peer),
        number(row.gather_us),
        "" if row.other_load is None else f"{100 * row.other_load:.0f}%",
        "yes" if row.valid else "NO",
    )


_GOAL_HEADER = ("goal", "value", "wanted", "holds")


def _goal_cells(goals: Sequence[Goal]) -> list[tuple[str, ...]]:
    words = {True: "yes", False: "NO", None: "not judged"}
    cells: list[tuple[str, ...]] = []
    for goal in goals:
        values = ", ".join(f"{part.name} {number(part.value) or '-'}" for part in goal.parts)
        cells.append((goal.name, values, goal.goal, words[goal.holds]))
    return cells


def number(value: float | None) -> str:
    """Three significant digits, no exponent; empty for None."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def plain(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
