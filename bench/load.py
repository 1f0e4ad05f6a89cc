# SPDX-License-Identifier: Apache-2.0
"""How much of the machine other processes used while we measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and iowait among the columns of the "cpu" line; the guest columns are
_COLUMNS = 8  # already counted in user and nice


@dataclass(frozen=True)
class Snapshot:
    """Seconds since some start: wall clock, busy time over all CPUs, and our own part of it."""

    wall: float
    busy: float
    own: float


def busy_seconds(stat: str, ticks_per_second: int) -> float:
    """Busy time of all CPUs together from the text of /proc/stat; stolen time counts as busy."""
    columns = [int(word) for word in stat.splitlines()[0].split()[1 : 1 + _COLUMNS]]
    return sum(c for i, c in enumerate(columns) if i not in _IDLE) / ticks_per_second


def snapshot() -> Snapshot | None:
    """None where /proc/stat does not exist: others are then unknown, and no block counts."""
    if not _STAT.exists():
        return None
    busy = busy_seconds(_STAT.read_text(), os.sysconf("SC_CLK_TCK"))
    return Snapshot(time.perf_counter(), busy, time.process_time())


def other_load(before: Snapshot | None, after: Snapshot | None) -> float | None:
    """Share of the whole machine, 0 to 1, that others used between two snapshots."""
    if before is None or after is None:
        return None
    others = (after.busy - before.busy) - (after.own - before.own)
    capacity = (after.wall - before.wall) * (os.cpu_count() or 1)
    return max(0.0, others / capacity) if capacity > 0 else 0.0
