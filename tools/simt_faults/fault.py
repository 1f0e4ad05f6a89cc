# SPDX-License-Identifier: Apache-2.0
"""What a fault is."""

from __future__ import annotations

from dataclasses import dataclass

_CUDA = "csrc/cuda/"


@dataclass(frozen=True)
class Fault:
    name: str  # op.what is wrong
    file: str
    text: str  # occurs exactly once
    replacement: str
    tests: str  # arguments of pytest


def fault(name: str, file: str, text: str, replacement: str, tests: str) -> Fault:
    """A fault in a file of csrc/cuda."""
    return Fault(name, _CUDA + file, text, replacement, tests)
