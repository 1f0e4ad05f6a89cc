# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: rich's bar where it is installed, a line that counts without it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

AT_ONCE = 0.05  # seconds; what took no longer was known already, and tells nothing of the pace


@contextmanager
def progress(total: int, *, log: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields `advance(text)`: one of `total` parts begins, `text` says which.

    log: where standard error is no terminal, write a line per part instead of nothing.
    """
    if not sys.stderr.isatty():
        yield _Lines(total) if log else lambda text: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
    except ImportError:
        yield _Lines(total, begin="\r\x1b[K", end="")
        print(file=sys.stderr)
        return
    columns = (BarColumn(), MofNCompleteColumn(), Remaining(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def advance(text: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=text)
            begun += 1

        yield advance


class _Lines:
    """A line per part, with the time left at the pace of the parts that took any."""

    def __init__(self, total: int, begin: str = "", end: str = "\n") -> None:
        self._total = total
        self._begin, self._end = begin, end
        self._begun = 0
        self._starts: list[float] = [time.monotonic()]

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        took = [end - start for start, end in pairwise([*self._starts[1:], now])]
        done = [seconds for seconds in took if seconds > AT_ONCE]
        eta = ""
        if done:
            left = sum(done) / len(done) * (self._total - self._begun)
            eta = f" (about {left:.0f} s left)"
        self._begun += 1
        self._starts.append(now)
        line = f"{self._begin}[{self._begun}/{self._total}] {text}{eta}"
        print(line, end=self._end, file=sys.stderr, flush=True)
