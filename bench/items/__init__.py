# SPDX-License-Identifier: Apache-2.0
"""The items of the suite, one file per family."""

from __future__ import annotations

from bench.calibrate import Calibration
from bench.items import accept, attention, curves, remap
from bench.session import Job

ITEMS = ("A2", "A3", "A5", "C1", "C2", "C3", "C4", "P1", "P2", "P3", "R1", "R2", "H1")


def all_jobs(calibration: Calibration) -> list[Job]:
    """Every job, in the order of ITEMS."""
    jobs = [*attention.jobs(calibration), *curves.jobs(), *accept.jobs(), *remap.jobs()]
    return sorted(jobs, key=lambda job: ITEMS.index(job.item))
