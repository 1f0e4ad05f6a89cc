# SPDX-License-Identifier: Apache-2.0
"""How far the run is and how long it will take: a bar with rich, plain lines without."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yields `advance(text)`: one of `total` jobs begins, `text` says which. Standard error."""
    if not sys.stderr.isatty():
        yield _Lines(total)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
    except ImportError:
        yield _Lines(total)
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
    """One line per job, with the time left at the present pace."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = 0
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        eta = ""
        if self._begun:
            pace = (time.monotonic() - self._start) / self._begun
            eta = f" (about {pace * (self._total - self._begun):.0f} s left)"
        self._begun += 1
        print(f"[{self._begun}/{self._total}] {text}{eta}", file=sys.stderr, flush=True)
