# SPDX-License-Identifier: Apache-2.0
"""One tuning run that several tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tuning import Clock, FinishedRun, copying_prompts, flat, small_tables, tuner


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Its steps take what `flat` says, and half a tick for each of accept and remap."""
    copying_prompts()  # before the clock stands still
    with pytest.MonkeyPatch.context() as patch:
        small_tables(patch)
        clock = Clock(patch)
        clock.script(flat, accept=0.5, remap=0.5)
        texts: list[str] = []
        file: Path = tmp_path_factory.mktemp("tune") / "measured"
        run = tuner(clock, file, advance=texts.append)
        return FinishedRun(run, run.run(), texts)


@pytest.fixture
def run(run_once: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[FinishedRun]:
    """The run, with the tables it was made with."""
    small_tables(monkeypatch)
    yield run_once


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """For a run of one's own."""
    copying_prompts()
    small_tables(monkeypatch)
    return Clock(monkeypatch)
