# SPDX-License-Identifier: Apache-2.0
"""tools/simt_mutants.py: its faults fit the kernels, and it takes no silence for a catch."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import simt_mutants  # noqa: E402
from simt_faults import FAULTS, Fault  # noqa: E402

FAULT = Fault("op.name", "csrc/x.cuh", "a < b", "a <= b", "tests/test_x.py")


def test_every_fault_fits_the_kernels_as_they_are() -> None:
    assert simt_mutants.stale(FAULTS) == []
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 12
    for fault in FAULTS:
        assert (ROOT / shlex.split(fault.tests)[0]).is_file(), fault.name


def test_a_fault_changes_one_place() -> None:
    assert simt_mutants.mutated(FAULT, "if (a < b)") == "if (a <= b)"
    with pytest.raises(ValueError, match="occurs 0 times"):
        simt_mutants.mutated(FAULT, "if (a > b)")
    with pytest.raises(ValueError, match="occurs 2 times"):
        simt_mutants.mutated(FAULT, "a < b; a < b")
    with pytest.raises(ValueError, match="changes nothing"):
        simt_mutants.mutated(replace(FAULT, replacement="a < b"), "a < b")


@pytest.mark.parametrize(
    ("status", "output", "caught", "by"),
    [
        (
            1,
            "FAILED tests/test_x.py::test_y[simt] - assert\n1 failed",
            True,
            "test_x.py::test_y[simt]",
        ),
        (-11, "", True, "a crash (signal 11)"),
        (0, "3 passed, 1 skipped", False, "nobody"),
        (0, "3 skipped", False, "no test: nothing ran"),
        (5, "12 deselected", False, "no test: nothing ran"),
        (4, "ERROR: not found", False, "no test: pytest exited with 4"),
        (2, "1 error during collection", False, "no test: pytest exited with 2"),
    ],
)
def test_verdicts(status: int, output: str, caught: bool, by: str) -> None:
    assert simt_mutants.verdict_of(status, output, 1.0) == simt_mutants.Verdict(caught, by, 1.0)
