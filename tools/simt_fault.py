# SPDX-License-Identifier: Apache-2.0
"""One fault that tools/simt_mutants.py puts into the CUDA kernels, and the tests that catch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    name: str  # op.what is wrong
    file: str
    text: str  # occurs exactly once
    replacement: str
    tests: str  # arguments of pytest


def fault(name: str, file: str, text: str, replacement: str, tests: str) -> Fault:
    return Fault(name, "csrc/cuda/" + file, text, replacement, tests)
