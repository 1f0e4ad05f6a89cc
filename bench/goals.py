# SPDX-License-Identifier: Apache-2.0
"""The goals of the CPU path, one entry per goal, judged on valid rows only.

Attention goals use two threads and the CPU's best instruction set. A goal of several numbers has a
part per number and holds when all parts do; its value is the part closest to failing, or furthest
beyond. A goal, or part, without a valid row is not judged: value and holds are None.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import derived
from bench.memory import LONG, SHORT, Memory
from bench.peers.attention import SDPA
from bench.row import Row

ATTENTION = ("A2", "A3", "H1")
MEMORY = (*ATTENTION, "A5", "C1", "C2", "C3", "C4")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Part:
    """One number against one bound; sign is "<", "<=" or ">="."""

    name: str
    value: float | None
    sign: str
    bound: float

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return bool(_COMPARE[self.sign](self.value, self.bound))

    @property
    def goal(self) -> str:
        return f"{self.sign} {self.bound:g}"

    @property
    def reached(self) -> float:
        """1 at the bound, more when better."""
        if self.value is None:
            return float("inf")
        good, bad = (self.bound, self.value) if self.sign != ">=" else (self.value, self.bound)
        return good / bad if bad > 0 else (1.0 if good >= bad else 0.0) + good


@dataclass(frozen=True)
class Goal:
    name: str
    goal: str
    items: tuple[str, ...]  # their rows judge it
    parts: list[Part] = field(default_factory=list)

    @property
    def holds(self) -> bool | None:
        """False as soon as one part fails; None while a part is not judged."""
        verdicts = [part.holds for part in self.parts]
        if False in verdicts:
            return False
        return None if None in verdicts else True

    @property
    def value(self) -> float | None:
        judged = [part for part in self.parts if part.value is not None]
        return min(judged, key=lambda part: part.reached).value if judged else None

    def as_dict(self) -> dict[str, Any]:
        parts = [{**asdict(p), "goal": p.goal, "holds": p.holds} for p in self.parts]
        return {
            "name": self.name,
            "value": self.value,
            "goal": self.goal,
            "holds": self.holds,
            "parts": parts,
        }


def judge(rows: list[Row], memory: Memory | None) -> list[Goal]:
    """Every goal, in the order in which they are written down."""
    valid = [row for row in rows if row.valid]
    best = _best_isa(valid)
    attention = [row for row in best if row.item in ATTENTION and row.params["threads"] == 2]
    wide = [row for row in attention if row.params["n"] >= 64]
    cold = [row for row in attention if row.params["cold"]]
    c1 = [row for row in best if row.item == "C1"]
    return [
        Goal(
            "attention fp32, n >= 64: time / floor",
            "<= 1.20 median",
            ATTENTION,
            [Part("fp32", _median(_over_floor(wide, dtype="fp32")), "<=", 1.20)],
        ),
        Goal(
            "attention bf16, n >= 64: time / floor, d128 / d64",
            "<= 1.28 / 1.38 median",
            ATTENTION,
            [
                Part(d, _median(_over_floor(wide, dtype="bf16", dim=d)), "<=", bound)
                for d, bound in (("d128", 1.28), ("d64", 1.38))
            ],
        ),
        Goal(
            "n=16, ctx 8k, d128 (cold blocks): time / floor",
            "<= 1.35",
            ATTENTION,
            [
                Part(dtype, _max(_over_floor(cold, dtype=dtype, dim="d128")), "<=", 1.35)
                for dtype in ("fp32", "bf16")
            ],
        ),
        Goal(
            "best peer (gather included) / ours, fp32 / bf16",
            ">= 2.1 / 2.3 median, never < 1.4",
            ATTENTION,
            [
                Part("fp32 median", _median(_over_peer(attention, "fp32")), ">=", 2.1),
                Part("bf16 median", _median(_over_peer(attention, "bf16")), ">=", 2.3),
                Part("fp32 worst", _min(_over_peer(attention, "fp32")), ">=", 1.4),
                Part("bf16 worst", _min(_over_peer(attention, "bf16")), ">=", 1.4),
            ],
        ),
        Goal(
            "tree only, n=256, depth 8: SDPA without gather / ours",
            ">= 20x fp32, 25x bf16",
            ("C1",),
            [
                Part(dtype, _min(_sdpa(_tree_only(c1, "d8-256", dtype))), ">=", bound)
                for dtype, bound in (("fp32", 20.0), ("bf16", 25.0))
            ],
        ),
        Goal(
            "chain and dense trees: SDPA without gather / ours",
            "never slower",
            ("C1",),
            [Part(kind, _min(_sdpa(_of_tree(c1, kind))), ">=", 1.0) for kind in ("chain", "dense")],
        ),
        Goal(
            "C1 at ctx 0: log-log slope of time against visible work",
            ">= 0.8",
            ("C1",),
            [Part(name, slope, ">=", 0.8) for name, slope in derived.density_slopes(c1).items()]
            or [Part("slope", None, ">=", 0.8)],
        ),
        Goal(
            "two-thread scaling: median time on 1 / on 2 threads",
            ">= 1.9x",
            ("H1",),
            [
                Part(dtype, _median(derived.scaling(best, dtype).values()), ">=", 1.9)
                for dtype in ("fp32", "bf16")
            ],
        ),
        Goal(
            "greedy accept [64, 49152] fp32 / bf16: eager / ours",
            ">= 12x / 60x all rows, >= 100x / 400x lazy",
            ("P1",),
            [
                Part(f"{dtype} {which}", _min(_greedy(valid, dtype, visited)), ">=", bound)
                for dtype, which, visited, bound in (
                    ("fp32", "all rows", 64, 12.0),
                    ("bf16", "all rows", 64, 60.0),
                    ("fp32", "lazy", 5, 100.0),
                    ("bf16", "lazy", 5, 400.0),
                )
            ],
        ),
        Goal(
            "accept with top-p: sort-based chain / ours",
            ">= 200x",
            ("P2",),
            [Part(dtype, _min(_sorting(valid, dtype)), ">=", 200.0) for dtype in ("fp32", "bf16")],
        ),
        Goal(
            "remap B=1: per-layer index_copy_ / ours; first-child path: bytes moved",
            ">= 12x; 0 bytes",
            ("R1", "R2"),
            [
                Part("B=1", _min(_index_copy(valid)), ">=", 12.0),
                Part("first child", _max(_first_child(rows)), "<=", 0.0),
            ],
        ),
        Goal(
            "extra memory of plan and attention at ctx 32k, 64 nodes",
            "< 1 MB, independent of ctx",
            MEMORY,
            [
                Part("MB", _megabytes(memory), "<", 1.0),
                Part(f"ctx {LONG} / ctx {SHORT}", _growth(memory), "<=", 1.05),
            ],
        ),
    ]


def _best_isa(rows: list[Row]) -> list[Row]:
    order = ("portable", "avx2", "avx512", "avx512_bf16")
    isas = {row.params["isa"] for row in rows}
    best = max(isas, key=order.index, default=None)
    return [row for row in rows if row.params["isa"] == best]


def _over_floor(rows: list[Row], *, dtype: str, dim: str = "") -> list[float]:
    return [
        row.over_floor
        for row in rows
        if row.over_floor is not None
        and row.floor_valid
        and row.params["dtype"] == dtype
        and row.params["model"].endswith(dim)
    ]


def _over_peer(rows: list[Row], dtype: str) -> list[float]:
    of_dtype = (row for row in rows if row.params["dtype"] == dtype)
    return [row.over_peer for row in of_dtype if row.over_peer is not None]


def _tree_only(rows: list[Row], tree: str, dtype: str) -> list[Row]:
    wanted = {"ctx": 0, "tree": tree, "dtype": dtype, "model": "32/8 d128"}
    return [row for row in rows if wanted.items() <= row.params.items()]


def _of_tree(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.params["tree"].startswith(f"{kind}-")]


def _sdpa(rows: list[Row]) -> list[float]:
    """The faster of the SDPA peers, as if it found its KV contiguous already."""
    ratios = []
    for row in rows:
        times = [row.peers[name] for name in SDPA if name in row.peers]
        if times:
            ratios.append((min(times) - (row.gather_us or 0.0)) / row.ours_us)
    return ratios


def _greedy(rows: list[Row], dtype: str, visited: int) -> list[float]:
    """Eager argmax over all rows against ours, which visited this many."""
    wanted = {"vocab": 49152, "n": 64, "batch": 1, "dtype": dtype, "accepted": visited - 1}
    return [
        row.peers["eager_greedy"] / row.ours_us
        for row in rows
        if row.item == "P1" and wanted.items() <= row.params.items()
    ]


def _sorting(rows: list[Row], dtype: str) -> list[float]:
    return [
        row.peers["eager_sort"] / row.ours_us
        for row in rows
        if "eager_sort" in row.peers
        and row.params["dtype"] == dtype
        and row.params["accepted"] == 4
    ]


def _index_copy(rows: list[Row]) -> list[float]:
    return [
        row.peers["index_copy_per_layer"] / row.ours_us
        for row in rows
        if row.item == "R1" and row.params["batch"] == 1
    ]


def _first_child(rows: list[Row]) -> list[float]:
    """Bytes are counted, not timed: noise does not matter."""
    return [row.extra["bytes_moved"] for row in rows if row.params.get("path") == "first_child"]


def _megabytes(memory: Memory | None) -> float | None:
    extra = memory.extra(LONG) if memory else None
    return None if extra is None else extra / 1e6


def _growth(memory: Memory | None) -> float | None:
    if memory is None:
        return None
    short, long = memory.extra(SHORT), memory.extra(LONG)
    return None if short is None or long is None else long / short


def _reduce(values: Iterable[float], reduce: Callable[[list[float]], float]) -> float | None:
    known = list(values)
    return reduce(known) if known else None


def _median(values: Iterable[float]) -> float | None:
    return _reduce(values, statistics.median)


def _min(values: Iterable[float]) -> float | None:
    return _reduce(values, min)


def _max(values: Iterable[float]) -> float | None:
    return _reduce(values, max)
