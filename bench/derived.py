# SPDX-License-Identifier: Apache-2.0
"""What several rows say together: slopes, and ratios between rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from bench.row import Row
from bench.trees import DENSITIES


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares slope of y against x; None with fewer than three points or one x."""
    if len(points) < 3:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def density_slopes(rows: Sequence[Row], work: str = "floor_us") -> dict[str, float | None]:
    """C1 at ctx 0, per size and dtype that has all densities: log time against log of the work.

    The work is the floor, which counts visible operations and the bytes of Q, K, V and O; or, with
    "flops", the operations alone. A kernel that ignores the mask has slope 0, an ideal one 1.
    """
    groups = _group(
        (row for row in rows if row.item == "C1" and row.params["ctx"] == 0),
        lambda row: f"n={row.params['n']} {row.params['dtype']}",
    )
    return {
        name: slope([(math.log(getattr(row, work)), math.log(row.ours_us)) for row in group])
        for name, group in groups.items()
        if len({row.params["tree"] for row in group}) >= len(DENSITIES)
    }


def scaling(rows: Sequence[Row], dtype: str) -> dict[str, float]:
    """H1, per shape: CPU time on one thread / wall time on two."""
    of_dtype = [row for row in rows if row.item == "H1" and row.params["dtype"] == dtype]
    groups = _group(of_dtype, _shape)
    ratios = {}
    for name, group in groups.items():
        times = {row.params["threads"]: row.ours_us for row in group}
        if {1, 2} <= times.keys():
            ratios[name] = times[1] / times[2]
    return ratios


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Every derived number of the valid rows, by name."""
    valid = [row for row in rows if row.valid]
    found: dict[str, float | None] = {
        f"C1 log-log slope at ctx 0, {name}": value for name, value in density_slopes(valid).items()
    }
    for name, value in density_slopes(valid, "flops").items():
        found[f"C1 log-log slope at ctx 0 against operations alone, {name}"] = value
    for item, unit, of in (("C2", "1k tokens", _kilo_context), ("C3", "node", _nodes)):
        for dtype in ("fp32", "bf16"):
            group = [r for r in valid if r.item == item and r.params["dtype"] == dtype]
            ours = slope([(of(row), row.ours_us) for row in group])
            floor = slope([(of(row), row.floor_us) for row in group])
            found[f"{item} us per {unit}, {dtype}"] = ours
            if ours is not None and floor:
                found[f"{item} slope / floor's slope, {dtype}"] = ours / floor
    for row in valid:
        if row.item == "C4":
            found[f"C4 caller's order / depth-first order, {row.case}"] = row.extra["order_ratio"]
    for dtype in ("fp32", "bf16"):
        found |= _block_sizes(valid, dtype)
        found |= {f"two-thread scaling, {k}": v for k, v in scaling(valid, dtype).items()}
    found["P3 us per accepted token"] = slope(
        [(row.params["accepted"], row.ours_us) for row in valid if row.item == "P3"]
    )
    return {name: value for name, value in found.items() if value is not None}


def _shape(row: Row) -> str:
    p = row.params
    return f"{p['model']}, ctx {p['ctx']}, n {p['n']}, {p['dtype']}, {p['isa']}"


def _kilo_context(row: Row) -> float:
    return float(row.params["ctx"]) / 1024


def _nodes(row: Row) -> float:
    return float(row.params["n"])


def _block_sizes(rows: Sequence[Row], dtype: str) -> dict[str, float | None]:
    times = {
        row.params["block_size"]: row.ours_us
        for row in rows
        if row.item == "A5" and row.params["dtype"] == dtype
    }
    if 64 not in times:
        return {}
    return {
        f"A5 blocks of {size} / blocks of 64, {dtype}": time / times[64]
        for size, time in times.items()
        if size != 64
    }


def _group(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
