# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error: rich's where it is installed, silent without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yields `advance(text)`: one of `total` parts begins, `text` says which."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield _Counter(total)
        print(file=sys.stderr)
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def advance(text: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=text)
            begun += 1

        yield advance


class _Counter:
    """The bar of a machine without rich: a line that counts."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = 0

    def __call__(self, text: str) -> None:
        self._begun += 1
        print(f"\r\x1b[K[{self._begun}/{self._total}] {text}", end="", file=sys.stderr, flush=True)
