# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.cpu`: the CPU suite in one process. docs/benchmarks.md explains the method."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from treeattn.cli.progress import progress

from bench import goals, report
from bench.calibrate import Calibration, calibrate
from bench.check import WrongResultError
from bench.items import ITEMS, all_jobs
from bench.memory import Memory, measure_memory
from bench.row import Row
from bench.session import Budget, Job, Session
from bench.timing import Effort

TOTAL_S, QUICK_TOTAL_S = 780.0, 36.0  # from the start until the last row


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen items, print the tables, write what was asked for."""
    options = _parse(argv)
    begin = time.perf_counter()
    threads = sorted({1, min(2, os.cpu_count() or 1)})
    effort = Effort(0.25, 1.0, 0.12) if options.quick else Effort(0.6, 3.0)
    print("calibrating ...", file=sys.stderr, flush=True)
    calibration = calibrate(threads, effort, best_isa_only=options.quick)
    jobs = [
        job
        for job in all_jobs(calibration)
        if job.item in options.items and (job.quick or not options.quick)
    ]
    rows, wrong = run(jobs, calibration, begin, quick=options.quick)
    memory = measure_memory() if set(goals.MEMORY) & set(options.items) else None
    write(calibration, rows, memory, options)
    for message in wrong:
        print(f"WRONG RESULT: {message}", file=sys.stderr)
    return 1 if wrong else 0


def run(
    jobs: list[Job], calibration: Calibration, begin: float, *, quick: bool
) -> tuple[list[Row], list[str]]:
    """(the rows of every job, in order; what was wrong with those that made none).

    begin: the moment on `time.perf_counter` from which the time of this run counts.
    """
    total_s, quiet_s = (QUICK_TOTAL_S, 0.4) if quick else (TOTAL_S, 1.2)
    session = Session(calibration, Budget(total_s, len(jobs), quiet_s, begin), quick)
    rows: list[Row] = []
    wrong: list[str] = []
    with progress(len(jobs), log=True) as advance:
        for job in jobs:
            advance(f"{job.item} {job.label}")
            try:
                rows += job.run(session)
            except WrongResultError as error:
                wrong.append(f"{job.item} {job.label}: {error}")
            session.budget.jobs_left -= 1
    return rows, wrong


def write(
    calibration: Calibration,
    rows: list[Row],
    memory: Memory | None,
    options: argparse.Namespace,
) -> None:
    """The tables on standard output; JSON, with every goal, and a report where asked for."""
    verdicts = goals.judge(rows, memory)
    chosen = [goal for goal in verdicts if set(goal.items) & set(options.items)]
    print(report.text(calibration, rows, chosen))
    if options.json:
        options.json.write_text(
            json.dumps(
                report.as_json(calibration, rows, verdicts, memory), indent=1, allow_nan=False
            )
            + "\n"
        )
    if options.report:
        report.write(options.report, calibration, rows, chosen)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument(
        "--items",
        type=items_argument(ITEMS),
        default=list(ITEMS),
        help=f"comma-separated, of {','.join(ITEMS)} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="few cases, under 50 s")
    parser.add_argument(
        "--json", type=file_argument, metavar="FILE", help="calibration, rows and goals"
    )
    parser.add_argument(
        "--report", type=folder_argument, metavar="DIR", help="Markdown, CSV and plots"
    )
    return parser.parse_args(argv)


# Paths are tried before anything is measured: a run of minutes must not end without its numbers.
def file_argument(text: str) -> Path:
    try:
        with open(text, "a"):
            return Path(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"must be a file that can be written: {error}") from error


def folder_argument(text: str) -> Path:
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"must be a folder: {error}") from error
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install matplotlib")
    return Path(text)


def items_argument(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads comma-separated items, each of which must be known."""

    def items(text: str) -> list[str]:
        chosen = [word.strip().upper() for word in text.replace(" ", ",").split(",")]
        chosen = [word for word in chosen if word]
        unknown = [item for item in chosen if item not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, got {text!r}")
        return chosen

    return items


if __name__ == "__main__":
    sys.exit(main())
