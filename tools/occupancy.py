# SPDX-License-Identifier: Apache-2.0
"""How many CTAs of a kernel fit an SM at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sm:
    """What one multiprocessor has (CUDA programming guide, technical specifications)."""

    threads: int
    ctas: int
    shared_bytes: int
    registers: int = 65536


SMS = {
    "80": Sm(2048, 32, 164 * 1024),
    "86": Sm(1536, 16, 100 * 1024),
    "89": Sm(1536, 24, 100 * 1024),
    "90": Sm(2048, 32, 228 * 1024),
    "100": Sm(2048, 32, 228 * 1024),
    "120": Sm(1536, 24, 100 * 1024),
}
RESERVED_SHARED_BYTES = 1024  # of each CTA, by the system
SHARED_GRANULE, REGISTER_GRANULE, PARTITIONS, WARP = 128, 256, 4, 32


def ctas_per_sm(sm: Sm, threads: int, registers: int, shared_bytes: int) -> int:
    """CTAs that fit at once. Each of an SM's four partitions has a quarter of the registers, and
    gives them to warps in granules; shared memory is given to CTAs in granules."""
    warps = -(-threads // WARP)
    per_warp = _round_up(registers * WARP, REGISTER_GRANULE)
    warps_by_registers = sm.registers // PARTITIONS // per_warp * PARTITIONS
    shared = _round_up(shared_bytes + RESERVED_SHARED_BYTES, SHARED_GRANULE)
    limits = (sm.ctas, sm.threads // WARP // warps, warps_by_registers // warps)
    return min(*limits, sm.shared_bytes // shared)


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
