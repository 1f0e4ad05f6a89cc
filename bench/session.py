# SPDX-License-Identifier: Apache-2.0
"""One run of the suite: the ceilings, the time that is left, and the jobs that make rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.calibrate import Calibration
from bench.row import Row
from bench.timing import Effort


@dataclass
class Budget:
    """Shares the time of a run among its jobs, so that a busy machine cannot make it endless."""

    total_s: float
    jobs_left: int
    quiet_s: float  # quiet sampling a row should get
    begin: float = field(default_factory=time.perf_counter)  # of the run, calibration included

    def effort(self) -> Effort:
        """For the next comparison: up to four times the quiet time to wait for quiet moments."""
        left = self.total_s - (time.perf_counter() - self.begin)
        share = max(0.05, 0.8 * left / max(1, self.jobs_left))
        return Effort(quiet_s=min(self.quiet_s, share), limit_s=min(4 * self.quiet_s, share))


@dataclass
class Session:
    calibration: Calibration
    budget: Budget
    quick: bool
    # (peer, dtype) -> why it is no longer run: far behind the best peer on an earlier shape
    hopeless: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Makes one row, or one row per thing that it compares."""

    item: str
    label: str
    run: Callable[[Session], list[Row]]
    quick: bool = False  # part of --quick
