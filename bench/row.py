# SPDX-License-Identifier: Apache-2.0
"""One line of the result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bench.floors import Floor
from bench.timing import Timing


@dataclass
class Row:
    """Times are microseconds per call, medians unless said otherwise."""

    item: str  # of the suite: A2, C1, P1, ...
    case: str
    ours_us: float
    floor_us: float
    best_peer: str | None
    best_peer_us: float | None  # with the gather where the peer needs contiguous KV
    over_floor: float | None  # ours / floor; None where nothing has to be done
    over_peer: float | None  # best peer / ours: how many times faster we are
    valid: bool  # enough quiet samples; only valid rows are held against goals
    floor_valid: bool = True  # the ceiling behind the floor was steady; else over_floor says little
    p20_us: float = 0.0
    p80_us: float = 0.0
    n: int = 0
    other_load: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    bound: str = ""
    gather_us: float | None = None
    peers: dict[str, float] = field(default_factory=dict)  # gather included where needed
    skipped: dict[str, str] = field(default_factory=dict)  # peer -> why it was not run
    max_error: float | None = None  # of ours, against fp64
    extra: dict[str, float] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)  # model, ctx, n, tree, dtype, threads, isa

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make(
    item: str,
    case: str,
    ours: Timing,
    floor: Floor,
    peers: dict[str, float],
    *,
    params: dict[str, Any],
    floor_valid: bool = True,
    gather_us: float | None = None,
    skipped: dict[str, str] | None = None,
    max_error: float | None = None,
    extra: dict[str, float] | None = None,
) -> Row:
    """`peers`: microseconds by name."""
    best = min(peers, key=peers.__getitem__) if peers else None
    return Row(
        item=item,
        case=case,
        ours_us=ours.median,
        floor_us=floor.us,
        best_peer=best,
        best_peer_us=peers[best] if best else None,
        over_floor=ours.median / floor.us if floor.us else None,
        over_peer=peers[best] / ours.median if best else None,
        valid=ours.valid,
        floor_valid=floor_valid,
        p20_us=ours.p20,
        p80_us=ours.p80,
        n=ours.n,
        other_load=ours.other_load,
        flops=floor.flops,
        bytes=floor.bytes,
        bound=floor.bound,
        gather_us=gather_us,
        peers=peers,
        skipped=skipped or {},
        max_error=max_error,
        extra=extra or {},
        params=params,
    )
