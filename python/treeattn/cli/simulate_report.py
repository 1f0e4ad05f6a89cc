# SPDX-License-Identifier: Apache-2.0
"""What `treeattn simulate` found, as text, JSON, Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from treeattn.cli import simulate_plot
from treeattn.cli.markdown import markdown_table
from treeattn.schedule.replay import PHASES
from treeattn.schedule.simulate import Comparison, Outcome

HEADER = ("setting", "tokens/s", "speed-up", "rows/step", "tokens/step", *PHASES)


@dataclass(frozen=True)
class Origin:
    """Where a table's numbers come from. kind: "measured", "assumed", "unknown" or "absent"."""

    table: str
    kind: str
    note: str

    @property
    def line(self) -> str:
        note = self.note.removeprefix(self.kind).lstrip(": ")
        return f"{self.table}: {self.kind.upper()}" + (f", {note}" if note else "")


@dataclass(frozen=True)
class Case:
    """One acceptance at one batch size. alpha: of the acceptance, if it is one number."""

    label: str
    alpha: float | None
    result: Comparison

    @property
    def title(self) -> str:
        return f"{self.label}, batch {self.result.batch_size}"

    @property
    def verdict(self) -> str:
        result = self.result
        best, regret = result.best(), result.regret
        online = f"{abs(regret):.1%} {'slower' if regret >= 0 else 'faster'}"
        promised = result.policy.verdict(result.batch_size)
        return (
            f"best fixed setting in hindsight: {best.name}, {result.speedup(best):.2f}x plain; "
            f"online is {online} than that (regret {regret:.2%}), from {promised.shape} "
            f"{promised.num_nodes} at a promised {promised.speedup:.2f}x"
        )

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return (*self.result.fixed, self.result.online)

    @property
    def left_out(self) -> list[str]:
        return [f"{o.name} is left out: {o.why_not}" for o in self.outcomes if o.replayed is None]


def text(cases: Sequence[Case], origins: Sequence[Origin], notes: Sequence[str]) -> str:
    """What the terminal shows."""
    parts = [origin.line for origin in origins]
    for case in cases:
        parts += ["", case.title, _columns(HEADER, _cells(case)), *case.left_out, case.verdict]
    return "\n".join([*parts, "", *notes])


def as_json(
    cases: Sequence[Case], origins: Sequence[Origin], notes: Sequence[str], seed: int
) -> dict[str, Any]:
    """Plain data."""
    return {
        "treeattn_simulation": 1,
        "seed": seed,
        "origins": [
            {"table": origin.table, "kind": origin.kind, "note": origin.note} for origin in origins
        ],
        "notes": list(notes),
        "cases": [
            {
                "acceptance": case.label,
                "alpha": case.alpha,
                "batch_size": case.result.batch_size,
                "settings": [outcome.numbers(case.result.plain) for outcome in case.outcomes],
                "best_fixed": case.result.best().name,
                "regret": case.result.regret,
                "policy": asdict(case.result.policy.verdict(case.result.batch_size)),
            }
            for case in cases
        ],
    }


def write(
    folder: Path, cases: Sequence[Case], origins: Sequence[Origin], notes: Sequence[str]
) -> None:
    """report.md, settings.csv and, where matplotlib is installed, speedup.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("tokens_per_second", "speedup", "rows_per_step", "tokens_per_step", "tokens", "ms")
    with (folder / "settings.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        shares = [f"share_{phase}" for phase in PHASES]
        writer.writerow(["acceptance", "batch_size", "setting", "shape", *names, *shares])
        for case in cases:
            for outcome in case.outcomes:
                data = outcome.numbers(case.result.plain)
                row = [case.label, case.result.batch_size, outcome.name, outcome.shape]
                share = data.get("share", {})
                row += [data.get(name) for name in names] + [share.get(p) for p in PHASES]
                writer.writerow(row)
    picture, missing = simulate_plot.draw(folder / "speedup.svg", cases)
    (folder / "report.md").write_text(
        markdown(cases, origins, notes, picture, missing), encoding="utf-8"
    )


def markdown(
    cases: Sequence[Case],
    origins: Sequence[Origin],
    notes: Sequence[str],
    picture: str | None,
    missing: str | None,
) -> str:
    """`picture`: a file beside the report; `missing`: why there is none."""
    parts = ["# Simulated decoding", "", "Where the numbers come from:", ""]
    parts += [f"- {origin.line}" for origin in origins]
    parts += ["", *(f"- {note}" for note in notes), "", summary(cases), ""]
    parts += [f"![Speed-up against plain decoding]({picture})"] if picture else [str(missing)]
    for case in cases:
        parts += ["", f"## {case.title}", "", markdown_table(HEADER, _cells(case)), ""]
        parts += [*(f"- {line}" for line in case.left_out), f"- {case.verdict}"]
    return "\n".join(parts) + "\n"


def summary(cases: Sequence[Case]) -> str:
    """A Markdown table with a row per case."""
    header = (
        "acceptance",
        "batch",
        "plain tokens/s",
        "best chain",
        "best tree",
        "online",
        "regret",
    )

    def cells() -> Iterator[tuple[str, ...]]:
        for _, group in groupby(cases, key=lambda case: case.label):
            for case in group:
                result = case.result
                best = [result.best(shape) for shape in ("chain", "tree")]
                yield (
                    case.label,
                    str(result.batch_size),
                    f"{result.plain.tokens_per_second:.0f}",
                    *(f"{result.speedup(o):.2f}x ({o.name})" for o in best),
                    f"{result.speedup(result.online):.2f}x",
                    f"{result.regret:.1%}",
                )

    return markdown_table(header, cells())


def _cells(case: Case) -> Iterator[tuple[str, ...]]:
    for outcome in case.outcomes:
        data = outcome.numbers(case.result.plain)
        if outcome.replayed is None:
            yield (outcome.name, *("-" for _ in HEADER[1:]))
            continue
        yield (
            outcome.name,
            f"{data['tokens_per_second']:.1f}",
            f"{data['speedup']:.3f}x",
            f"{data['rows_per_step']:.2f}",
            f"{data['tokens_per_step']:.2f}",
            *(f"{data['share'][phase]:.1%}" for phase in PHASES),
        )


def _columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    )
