# SPDX-License-Identifier: Apache-2.0
"""The way back of the KV cache is measured where it moves rows, and where it does not."""

from __future__ import annotations

import pytest
from support.tiny import tiny_decoder
from support.tuning import Clock
from treeattn.tune.restore import ACCEPTED, CASES, restore_ms


def test_rows_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in depth-first order, one per accepted token in another, none with blocks of 1."""
    clock = Clock(monkeypatch)
    clock.script(verify=lambda rows, context: 0, remap=3)
    found = restore_ms(tiny_decoder())
    assert list(found) == [name for name, _, _ in CASES]
    assert [case["rows_moved"] for case in found.values()] == [0, ACCEPTED, 0]
    assert [case["ms"] for case in found.values()] == [375.0] * 3


def test_times_are_taken() -> None:
    assert all(case["ms"] > 0 for case in restore_ms(tiny_decoder()).values())
