# SPDX-License-Identifier: Apache-2.0
"""The emulator itself: collectives, matrix instructions, asynchronous copies, faults, orders."""

from __future__ import annotations

import os
import subprocess

import pytest
from support import simt

CHECKS = (
    "shuffles",
    "votes",
    "partial_masks",
    "barrier",
    "missing_barrier_shows",
    "divergence",
    "masks_are_checked",
    "atomics",
    "last_arriver",
    "shared_memory_starts_as_nan",
    "async_copies_land_at_their_wait",
    "async_copies_are_passed_on",
    "wide_accesses_are_checked",
    "ldmatrix",
    "ldmatrix_conflicts",
    "ldmatrix_rows_are_checked",
    "product_bf16",
    "product_half",
    "product_needs_the_whole_warp",
    "conversions",
    "orders",
    "bad_orders",
    "indices",
    "counters",
    "launch_limits",
    "stacks_are_apart",
    "recovery",
)
NEEDS_ASAN, NEEDS_UBSAN = "overrun_of_shared_memory", "signed_overflow"


def run(*arguments: str, order: str = "forward") -> subprocess.CompletedProcess[str]:
    program = simt.built("simt_checks")
    if program is None:
        pytest.skip(simt.MISSING)
    return subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TREEATTN_SIMT_ORDER": order},
    )


def test_every_check_is_run() -> None:
    assert sorted(run().stdout.split()) == sorted((*CHECKS, NEEDS_ASAN, NEEDS_UBSAN))


@pytest.mark.parametrize("order", simt.ORDERS)
@pytest.mark.parametrize("check", CHECKS)
def test_machine(check: str, order: str) -> None:
    result = run(check, order=order)
    assert result.returncode == 0, result.stdout + result.stderr


def test_overrun_of_shared_memory_is_seen_by_address_sanitizer() -> None:
    result = run(NEEDS_ASAN)
    if "AddressSanitizer" not in result.stderr:
        pytest.skip("not built with AddressSanitizer (preset debug)")
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr and "overrun_kernel" in result.stderr


def test_what_ubsan_finds_ends_the_process() -> None:
    result = run(NEEDS_UBSAN)
    if "runtime error" not in result.stderr:
        pytest.skip("not built with UBSan (preset debug)")
    assert result.returncode != 0
    assert "signed integer overflow" in result.stderr and "check_memory" in result.stderr
