# SPDX-License-Identifier: Apache-2.0
"""Interleaved sampling that trusts quiet moments only.

Candidates are sampled in turn (A, B, C, A, B, C, ...) in blocks. A block counts only when other
processes used less than MAX_OTHER_LOAD of the machine meanwhile. One thread is measured in CPU
time of this process, which preemption does not touch; several threads in wall-clock time. Short
runs are sampled on warm caches, unless their data is to be cold.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from bench import load

MAX_OTHER_LOAD = 0.08
MIN_SAMPLES = 3  # of quiet blocks, per candidate; fewer make the measurement invalid
WARM_S = 0.02  # what takes longer than this leaves nothing in the caches that helps its next run
UNTIMED_S = 0.004  # of runs before a sample; the last-level cache takes several to fill
SAMPLE_S = 200e-6  # shorter runs are repeated within a sample: the clocks cost up to 1 us


@dataclass(frozen=True)
class Work:
    """Something to time. `prepare` runs untimed before each single run.

    warm: the caches hold what the candidate itself left there, not what the one before it did:
    untimed runs come before each sample of a run shorter than WARM_S. False where data is to be
    cold, and where nobody else runs in between.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    warm: bool = True


@dataclass(frozen=True)
class Timing:
    """Microseconds per run."""

    median: float
    p20: float
    p80: float
    best: float
    n: int
    other_load: float | None  # median share of the machine over the blocks used
    valid: bool


@dataclass(frozen=True)
class Effort:
    """How long to sample one comparison, in seconds."""

    quiet_s: float  # enough quiet sampling, all candidates together
    limit_s: float  # give up on quiet blocks after this
    block_s: float = 0.2  # /proc/stat counts in steps of 10 ms, so shorter blocks say little


@dataclass
class Block:
    """Samples of each candidate, in seconds per run, and what others used meanwhile."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    other_load: float | None = None
    wall_s: float = 0.0

    @property
    def quiet(self) -> bool:
        return self.other_load is not None and self.other_load < MAX_OTHER_LOAD


def compare(works: Mapping[str, Work], *, threads: int, effort: Effort) -> dict[str, Timing]:
    """Time every candidate under the same conditions, on `threads` of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    try:
        how = {name: _warm_up(work, clock) for name, work in works.items()}
        return summarise(_sample(works, how, clock, effort), list(works))
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Sampling:
    """repeats: runs that make up one sample. untimed: runs before it."""

    repeats: int
    untimed: int


def _warm_up(work: Work, clock: Callable[[], float]) -> _Sampling:
    """Runs it, unless it is slow twice, and says how to sample it."""
    seconds = _timed(work, 1, clock)
    if seconds < 10 * WARM_S:  # the first run may have been slow for reasons of its own
        seconds = min(seconds, _timed(work, 1, clock))
    seconds = max(seconds, 1e-7)
    repeats = untimed = 1
    if work.prepare is None:
        repeats = max(1, min(1000, round(SAMPLE_S / seconds)))
        untimed = max(1, min(1000, math.ceil(UNTIMED_S / seconds)))
    return _Sampling(repeats, untimed if work.warm and seconds < WARM_S else 0)


def _sampled(work: Work, how: _Sampling, clock: Callable[[], float]) -> float:
    for _ in range(how.untimed):
        _timed(work, 1, clock)
    return _timed(work, how.repeats, clock)


def _timed(work: Work, repeats: int, clock: Callable[[], float]) -> float:
    if work.prepare is not None:
        work.prepare()
    run = work.run
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def _sample(
    works: Mapping[str, Work],
    how: Mapping[str, _Sampling],
    clock: Callable[[], float],
    effort: Effort,
) -> list[Block]:
    blocks: list[Block] = []
    begin = time.perf_counter()
    while True:
        blocks.append(_block(works, how, clock, effort.block_s))
        quiet = [block for block in blocks if block.quiet]
        rounds = sum(_rounds(block) for block in quiet)
        enough = rounds >= MIN_SAMPLES and sum(b.wall_s for b in quiet) >= effort.quiet_s
        tried = sum(_rounds(block) for block in blocks) >= MIN_SAMPLES  # slow ones get a chance
        if enough or (tried and time.perf_counter() - begin >= effort.limit_s):
            return blocks


def _rounds(block: Block) -> int:
    return len(next(iter(block.samples.values())))


def _block(
    works: Mapping[str, Work],
    how: Mapping[str, _Sampling],
    clock: Callable[[], float],
    block_s: float,
) -> Block:
    block = Block({name: [] for name in works})
    before = load.snapshot()
    begin = time.perf_counter()
    while block.wall_s < block_s:
        for name, work in works.items():
            block.samples[name].append(_sampled(work, how[name], clock))
        block.wall_s = time.perf_counter() - begin
    block.other_load = load.other_load(before, load.snapshot())
    return block


def summarise(blocks: list[Block], names: list[str]) -> dict[str, Timing]:
    """Statistics over the quiet blocks; over all of them, and invalid, when those are too few."""
    quiet = [block for block in blocks if block.quiet]
    valid = sum(_rounds(block) for block in quiet) >= MIN_SAMPLES
    used = quiet if valid else blocks
    loads = [block.other_load for block in used if block.other_load is not None]
    timings = {}
    for name in names:
        samples = sorted(1e6 * s for block in used for s in block.samples[name])
        timings[name] = Timing(
            median=statistics.median(samples),
            p20=quantile(samples, 0.2),
            p80=quantile(samples, 0.8),
            best=samples[0],
            n=len(samples),
            other_load=statistics.median(loads) if loads else None,
            valid=valid,
        )
    return timings


def quantile(ordered: list[float], q: float) -> float:
    """Linear between the two nearest of an ascending, non-empty list."""
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
