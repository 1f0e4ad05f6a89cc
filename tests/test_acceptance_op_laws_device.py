# SPDX-License-Identifier: Apache-2.0
"""As test_acceptance_op_laws.py on devices, on shapes that the emulator has time for."""

from __future__ import annotations

import pytest
from support.enumerate import branching, toy
from test_acceptance_op_laws import BLOCK, TARGET, TRIALS, Case, check

MACHINES = "device"
pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.parametrize("shape", [(1, 1), (2,)], ids=str)
@pytest.mark.parametrize("case", [TARGET, *TRIALS], ids=str)
def test_lossless(case: Case, shape: tuple[int, ...], device: str) -> None:
    check(case, toy(f"device {shape}"), branching(*shape), device)


def test_block(device: str) -> None:
    check(BLOCK, toy("device chain"), branching(1, 1), device)


def test_a_ragged_shape(device: str) -> None:
    for case in TRIALS:
        check(case, toy("device ragged", 2), [-1, 0, 1, 0], device)
