# SPDX-License-Identifier: Apache-2.0
"""Cost tables hold what the phases of a step took, and what a level of drafts did."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.tiny import tiny_decoder
from support.tuning import TICK, Clock
from treeattn.cost_file import CostTables
from treeattn.decoder import Request
from treeattn.tree import DraftTree
from treeattn.tune import costs as costs_module
from treeattn.tune.costs import LEAST_MS, MOST_LEVELS, MOST_WIDTH, draft_costs, step_costs

ROWS, CONTEXTS = (2, 4, 8), (16, 64)
MS = 1000 * TICK


def verify_ticks(rows: int, context: int) -> int:
    """No staircase is assumed: 4 rows take longer than 8."""
    return {2: 3, 4: 9, 8: 7}[rows] + (20 if context >= CONTEXTS[1] else 0)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_tables_hold_the_scripted_times(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.script(verify_ticks, accept=lambda rows: rows, remap=lambda rows: 2 * rows + 1)
    tables = step_costs(tiny_decoder(), rows=ROWS, contexts=CONTEXTS, batch_size=batch_size)
    assert {point[:2]: point[2] for point in tables.verify} == {
        (rows, context): MS * verify_ticks(rows, context) for rows in ROWS for context in CONTEXTS
    }
    assert tables.accept == tuple((rows, MS * rows) for rows in ROWS)
    assert tables.remap == tuple((rows, MS * (2 * rows + 1)) for rows in ROWS)
    assert tables.draft == ()
    assert set(tables.about) == {"verify", "accept", "remap"}
    assert all(text.startswith("measured") for text in tables.about.values())
    assert CostTables.from_json(tables.to_json()) == tables


def test_no_time_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count as not measured."""
    Clock(monkeypatch).script(lambda rows, context: 0)
    tables = step_costs(tiny_decoder(), rows=(1,), contexts=(16,))
    assert tables.verify == ((1, 16, LEAST_MS),) and tables.accept == ((1, LEAST_MS),)


def test_medians_of_repeats_without_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of each context is the warm-up; two outliers in five repeats do not show."""
    clock, calls = Clock(monkeypatch), {2: 0, 4: 0}

    def ticks(rows: int, context: int) -> int:
        calls[rows] += 1
        if rows == 2 and calls[rows] % 2 == 1:
            return 1000
        return 50 if rows == 4 and calls[rows] <= 2 else 5

    clock.script(ticks)
    tables = step_costs(tiny_decoder(), rows=(2, 4), contexts=(16,))
    assert tables.verify == ((2, 16, 5 * MS), (4, 16, 5 * MS))
    assert calls == {2: 10, 4: 5}


class Levels:
    """Drafts whose levels take scripted ticks: of chains, and of trees WIDE wide."""

    WIDE = 8

    def __init__(self, clock: Clock, narrow: Sequence[float], wide: Sequence[float]) -> None:
        self._clock = clock
        self._ticks = {"chain": narrow, "tree": wide}

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        width = 1 if shape == "chain" else self.WIDE
        parents, level, depth = [-1], [0], 0
        while len(parents) < num_nodes:
            count = min(width, num_nodes - len(parents))
            first = len(parents)
            parents += [level[0]] * count
            level, depth = list(range(first, first + count)), depth + 1
        self._clock.advance(sum(self._ticks[shape][:depth]))
        tokens = range(1, num_nodes)
        return [DraftTree([request.tokens[-1], *tokens], parents) for request in requests]

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass


def test_draft_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels between two measured lengths share their time; a wide level takes thrice as long."""
    narrow = [4.0, 2.0, 1.5, 0.5, 0.25, 0.5, 1.0, 0.25]
    shared = [4.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    clock = Clock(monkeypatch)
    drafter = Levels(clock, narrow, [3 * ticks for ticks in shared])
    points, about = draft_costs(tiny_decoder(), drafter, [[1, 2, 3], [4]])
    assert about.startswith("measured: chains of (1, 2, 4, 8) levels") and "assumed: " in about
    by_size = {(level, width): ms for level, width, ms in points}
    wider = sorted({width for _, width in by_size})
    assert wider == [1, Levels.WIDE, MOST_WIDTH]
    for level in range(1, MOST_LEVELS + 1):
        ms = MS * shared[min(level, 8) - 1]
        assert [by_size[level, width] for width in wider] == [ms, 3 * ms, 3 * ms]
    table = CostTables(((1, 1, 1.0),), draft=points).costs.draft
    assert table is not None
    assert table(3, 1) == MS and table(3, 2) == 3 * MS and table(3, 100) == 3 * MS


def test_a_tree_deeper_than_any_chain_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """31 levels of one node: the ninth and later ones count as the eighth does."""
    monkeypatch.setattr(Levels, "WIDE", 1)
    clock = Clock(monkeypatch)
    points, _ = draft_costs(tiny_decoder(), Levels(clock, [1.0] * 8, [2.0] * 31), [[1, 2, 3]])
    by_size = {(level, width): ms for level, width, ms in points}
    assert by_size[1, 1] == MS and by_size[1, 2] == 2 * MS


def test_a_drafter_without_drafts_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is below LEAST_MS, since none may be 0; wide levels take no less than narrow ones."""
    clock = Clock(monkeypatch)
    points, _ = draft_costs(tiny_decoder(), Levels(clock, [0.0] * 8, [0.0] * 8), [[1, 2, 3]])
    assert {ms for _, _, ms in points} == {LEAST_MS}
    silent = Levels(clock, [8.0] + [0.0] * 7, [1.0] * 8)
    points, _ = draft_costs(tiny_decoder(), silent, [[1, 2, 3]])
    assert {(level, ms) for level, _, ms in points if level < 3} == {(1, 8 * MS), (2, LEAST_MS)}


def test_random_trees_have_exactly_the_rows_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    clock = Clock(monkeypatch)

    def ticks(rows: int, context: int) -> int:
        seen.append(rows)
        return 1

    clock.script(ticks)
    monkeypatch.setattr(costs_module, "REPEATS", 1)
    step_costs(tiny_decoder(), rows=(1, 3, 16), contexts=(16, 32))
    assert seen == [1, 1, 3, 16] * 2
    seen.clear()
    step_costs(tiny_decoder(), rows=(3, 5, 16), contexts=(16,), batch_size=3)
    assert seen == [3, 3, 5, 16]
    with pytest.raises(ValueError, match="rows must be at least batch_size, 3, got 2"):
        step_costs(tiny_decoder(), rows=(2, 4), contexts=(16,), batch_size=3)
