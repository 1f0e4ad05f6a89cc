# SPDX-License-Identifier: Apache-2.0
"""Cost tables on disk: what comes back is what was measured, and what is wrong is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from treeattn.cost_file import CostTables
from treeattn.schedule import Policy, Verdict

TABLES = CostTables(
    verify=((1, 128, 10.0), (4, 128, 10.5), (4, 1024, 12.25), (16, 1024, 20.0)),
    draft=((1, 1, 0.5), (2, 8, 0.75)),
    accept=((16, 0.125),),
    remap=((4, 0.0625), (16, 0.25)),
    about={"verify": "measured: one CPU", "draft": "assumed: 5% of verify"},
)


def saved(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def changed(**changes: Any) -> dict[str, Any]:
    """The file of TABLES with other tables; those that are None are missing."""
    data = {**TABLES.to_json(), **changes}
    return {name: value for name, value in data.items() if value is not None}


def test_round_trip(tmp_path: Path) -> None:
    assert CostTables.load(saved(tmp_path / "costs.json", TABLES.to_json())) == TABLES


def test_a_policy_file_is_a_file_of_costs(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    Policy({1: Verdict("off", 1, 0.0, 0.0, 1.0)}, TABLES, "suffix").save(path)
    assert CostTables.load(path) == TABLES


def test_tables_of_batches(tmp_path: Path) -> None:
    """A batch goes by the next size that was measured; a larger one by none."""
    two, eight = (CostTables(((8, 64, ms),), about={"verify": "measured"}) for ms in (2.0, 8.0))
    tables = replace(TABLES, batches={8: eight, 2: two})
    assert [tables.at(size) for size in (1, 2, 3, 8)] == [two, two, eight, eight]
    assert tables.covers(8) and not tables.covers(9) and TABLES.covers(99)
    assert TABLES.at(99) is TABLES
    path = saved(tmp_path / "costs.json", tables.to_json())
    assert CostTables.load(path) == tables
    assert [CostTables.load(path, batch_size=size) for size in (2, 8)] == [two, eight]
    with pytest.raises(ValueError, match="batch_size must be at most 8, got 9"):
        CostTables.load(path, batch_size=9)
    policy = tmp_path / "policy.json"
    Policy({1: Verdict("off", 1, 0.0, 0.0, 1.0)}, tables, "suffix").save(policy)
    assert Policy.load(policy).costs == CostTables.load(policy) == tables
    with pytest.raises(ValueError, match=r"batches must be sizes >= 1, got \[0, 2\]"):
        replace(TABLES, batches={0: two, 2: two})
    for wrong in ({"two": {}}, {"2": {"batches": {}}}, {"2": []}, []):
        saved(path, {**TABLES.to_json(), "batches": wrong})
        with pytest.raises(ValueError, match="batches must hold tables by batch size, got"):
            CostTables.load(path)


def test_a_part_takes_from_the_whole_what_it_leaves_out(tmp_path: Path) -> None:
    """And is written that way."""
    slow = replace(TABLES, verify=((4, 64, 99.0),))
    tables = replace(TABLES, batches={1: TABLES, 4: slow})
    data = tables.to_json()
    assert data["batches"] == {"1": {}, "4": {"verify": [[4, 64, 99.0]]}}
    found = CostTables.load(saved(tmp_path / "costs.json", data))
    assert found == tables and found.at(4).source("verify") == "measured"
    assert found.at(4).draft == TABLES.draft


def test_only_verify_is_needed(tmp_path: Path) -> None:
    path = saved(tmp_path / "costs.json", {"verify": [[1, 1, 5]]})
    tables = CostTables.load(path)
    assert tables == CostTables(verify=((1.0, 1.0, 5.0),))
    costs = tables.costs
    assert (costs.draft, costs.accept, costs.remap) == (None, None, None)
    assert costs.after_draft([1], 1) == [5.0]


def test_the_costs_are_those_staircases() -> None:
    costs = TABLES.costs
    assert [costs.verify(rows, 100) for rows in (1, 2, 4, 5, 16, 17)] == [
        *(10.0, 10.5, 10.5, 20.0, 20.0),
        math.inf,
    ]
    assert [costs.verify(2, context) for context in (1, 128, 129, 1024)] == [
        10.5,
        10.5,
        12.25,
        12.25,
    ]
    assert costs.verify(1, 129) == 12.25  # the next rows that were measured at such a context
    assert costs.draft is not None and costs.accept is not None and costs.remap is not None
    assert [costs.draft(1, 1), costs.draft(1, 5), costs.draft(2, 8)] == [0.5, 0.75, 0.75]
    assert costs.draft(3, 1) == math.inf
    assert costs.after_draft([4, 16], 128).tolist() == [10.5 + 0.125 + 0.0625, 20.0 + 0.125 + 0.25]


def test_the_longest_context() -> None:
    assert TABLES.max_context == 1024
    # What is no time is not a measurement.
    assert CostTables(verify=((1, 64, 2.0), (1, 4096, math.nan))).max_context == 64
    assert CostTables(verify=((1, 64, math.inf),)).max_context == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(verify=None), "cost tables must have the table verify"),
        (changed(verify=[]), "verify must hold at least one point (rows, context, ms)"),
        (
            changed(verify=[[1, 2, 3], [4, 5]]),
            "verify must hold points (rows, context, ms), got (4",
        ),
        (changed(accept=[[1, 2, 3]]), "accept must hold points (rows, ms), got (1.0, 2.0, 3.0)"),
        (changed(draft=[[1, "a", 3]]), "draft must hold points of numbers, got [1, 'a', 3]"),
        (changed(draft=[[1, True, 3]]), "draft must hold points of numbers, got [1, True, 3]"),
        (changed(remap=[5]), "remap must hold points of numbers, got 5"),
        (changed(remap={"1": 2}), "remap must be a list of points, got {'1': 2}"),
        (
            changed(verify=[[0, 2, 3]]),
            "whole numbers >= 1 for rows and context, got (0.0, 2.0, 3.0",
        ),
        (changed(verify=[[1, 1.5, 3]]), "verify must have whole numbers >= 1 for rows and context"),
        (
            changed(draft=[[math.nan, 1, 3]]),
            "draft must have whole numbers >= 1 for level and width",
        ),
        (
            changed(columns={"verify": ["context", "rows", "ms"]}),
            "columns of verify must be ('rows",
        ),
        ([1, 2], "cost tables must have the table verify, got [1, 2]"),
    ],
)
def test_what_is_wrong_is_named(data: Any, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "costs.json", data)
    with pytest.raises(ValueError) as error:
        CostTables.load(path)
    assert str(error.value).startswith(f"costs {path}: ")
    assert message in str(error.value)


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with pytest.raises(FileNotFoundError):
        CostTables.load(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=f"costs {path}: .*line 1"):
        CostTables.load(path)
