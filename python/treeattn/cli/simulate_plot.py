# SPDX-License-Identifier: Apache-2.0
"""Speed-up against batch size and against acceptance, as SVG."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeattn.cli.simulate_report import Case

_MISSING = "The plot needs matplotlib, which the extra viz brings"
_LINES: tuple[tuple[str, str, Callable[[Case], float]], ...] = (
    ("best chain", "s--", lambda case: case.result.speedup(case.result.best("chain"))),
    ("best tree", "o-", lambda case: case.result.speedup(case.result.best("tree"))),
    ("online", "k^:", lambda case: case.result.speedup(case.result.online)),
)


def draw(file: Path, cases: Sequence[Case]) -> tuple[str | None, str | None]:
    """(the name of the file, None), or (None, why it was not written)."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None, _MISSING
    by_batch = {
        label: [case for case in cases if case.label == label]
        for label in dict.fromkeys(case.label for case in cases)
    }
    known = [case for case in cases if case.alpha is not None]
    by_alpha = {
        f"batch {size}": [case for case in known if case.result.batch_size == size]
        for size in dict.fromkeys(case.result.batch_size for case in known)
    }
    rows: list[dict[str, list[Case]]] = [by_batch]
    if len({case.alpha for case in known}) > 1:
        rows.append(by_alpha)
    columns = max(map(len, rows))
    # Text stays text, and the same numbers give the same bytes.
    look: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "treeattn",
        "font.sans-serif": ["DejaVu Sans"],
    }
    with matplotlib.rc_context(look):
        figure, axes = pyplot.subplots(
            len(rows),
            columns,
            figsize=(2.6 * columns, 2.7 * len(rows)),
            squeeze=False,
            sharey=True,
            layout="constrained",
        )
        for unused in (
            axis for row, line in zip(rows, axes, strict=True) for axis in line[len(row) :]
        ):
            unused.remove()
        for axis, (title, panel) in zip(axes[0], by_batch.items(), strict=False):
            _panel(axis, title, panel, lambda case: case.result.batch_size, "batch size")
            axis.set_xscale("log", base=2)
            sizes = sorted({case.result.batch_size for case in panel})
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
        if len(rows) > 1:
            for axis, (title, panel) in zip(axes[1], by_alpha.items(), strict=False):
                _panel(axis, title, panel, lambda case: case.alpha, "alpha")
        for line in axes:
            line[0].set_ylabel("speed-up against plain")
        axes[0][0].legend(fontsize=7)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    # An eighth of it says nothing: indentation, and rotations by nothing.
    slim = re.sub(r' transform="rotate\(-0 [^"]*"', "", drawn.getvalue())
    file.write_text(re.sub(r"\n +", "\n", slim), encoding="utf-8")
    return file.name, None


def _panel(
    axis: Any, title: str, cases: Sequence[Case], x_of: Callable[[Case], Any], x_label: str
) -> None:
    ordered = sorted(cases, key=x_of)
    for label, style, y_of in _LINES:
        axis.plot(
            [x_of(case) for case in ordered],
            [y_of(case) for case in ordered],
            style,
            label=label,
            markersize=3.5,
            linewidth=1.2,
        )
    axis.axhline(1.0, color="0.6", linewidth=0.8)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(x_label, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(True, axis="y", alpha=0.3)
