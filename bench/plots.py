# SPDX-License-Identifier: Apache-2.0
"""Cost against density, context and nodes: ours, every peer and the floor on one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.row import Row

# item -> (file, horizontal axis, its value)
_CURVES: dict[str, tuple[str, str, Callable[[Row], float]]] = {
    "C1": ("cost-against-density", "mask density", lambda row: float(row.params["density"])),
    "C2": ("cost-against-context", "context, tokens", lambda row: float(row.params["ctx"])),
    "C3": ("cost-against-nodes", "nodes", lambda row: float(row.params["n"])),
}
_COLUMNS = 4
_MISSING = "Plots need matplotlib: pip install matplotlib"


def draw(folder: Path, rows: Sequence[Row]) -> tuple[list[str], str | None]:
    """(names of the PNG files written, why there are none)."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return [], _MISSING
    written = []
    for item, (name, axis_label, x_of) in _CURVES.items():
        panels = _panels([row for row in rows if row.item == item])
        if not panels:
            continue
        columns = min(len(panels), _COLUMNS)
        lines = -(-len(panels) // columns)
        size = (4.4 * columns, 3.8 * lines)
        figure, axes = pyplot.subplots(
            lines, columns, figsize=size, squeeze=False, layout="constrained"
        )
        for unused in axes.flat[len(panels) :]:
            unused.remove()
        for axis, (title, panel) in zip(axes.flat, panels.items(), strict=False):
            for label, style, points in _lines(sorted(panel, key=x_of), x_of):
                axis.plot(*zip(*points, strict=True), style, label=label)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(axis_label)
            axis.set_ylabel("us per call")
            axis.set_title(title, fontsize=9)
            axis.grid(True, which="major", alpha=0.3)
            axis.legend(fontsize=7)
        figure.savefig(folder / f"{name}.png", dpi=110)
        pyplot.close(figure)
        written.append(f"{name}.png")
    return written, None


def _panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """One picture's panels: everything but the horizontal axis is the same in each."""
    panels: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        p = row.params
        place = {
            "C1": f"n = {p['n']}, ctx {p['ctx']}",
            "C2": f"n = {p['n']}",
            "C3": f"ctx {p['ctx']}",
        }[row.item]
        machine = f"{p['threads']} threads" if "threads" in p else f"batch {p['batch']}"
        panels[f"{p['model']}, {place}, {p['dtype']}, {machine}"].append(row)
    return {title: panel for title, panel in panels.items() if len(panel) > 1}


def _lines(
    rows: Sequence[Row], x_of: Callable[[Row], float]
) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """(label, style, points): ours, the floor, and each peer with its gather."""
    lines = [
        ("treeattn", "o-", [(x_of(row), row.ours_us) for row in rows]),
        ("floor", "k--", [(x_of(row), row.floor_us) for row in rows]),
    ]
    noisy = [(x_of(row), row.ours_us) for row in rows if not row.valid]
    if noisy:
        lines.append(("noisy, judges nothing", "kx", noisy))
    for peer in sorted({peer for row in rows for peer in row.peers}):
        points = [(x_of(row), row.peers[peer]) for row in rows if peer in row.peers]
        lines.append((peer, ".:", points))
    return lines
