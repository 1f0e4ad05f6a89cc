# SPDX-License-Identifier: Apache-2.0
"""What this machine can do at most, measured in the same process as everything else.

fp32: independent FMAs that never leave the registers. bf16: the same with the bf16 dot product
where the CPU has AVX512-BF16; elsewhere bf16 must be widened to fp32, so its ceiling is the fp32
rate. Memory: reading a buffer of several times the last-level cache.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bench.floors import Floor, Rates
from bench.timing import Effort, Work, compare

ISAS = ("portable", "avx2", "avx512", "avx512_bf16")  # ascending
MAX_SPREAD = 0.10  # a ceiling that varies more than this judges nobody
MIN_SCALING = 0.8  # of one thread's FMA rate; with less, the threads shared a core
_ISA_VARIABLE = "TREEATTN_CPU_ISA"
_READ_BYTES = 384 << 20
_ROUNDS = 200_000  # about half a millisecond


@dataclass(frozen=True)
class Ceiling:
    """A rate, in 1e9 per second: the fastest quiet sample, and how far the median is below it."""

    best: float
    spread: float
    valid: bool

    @property
    def steady(self) -> bool:
        return self.valid and self.spread <= MAX_SPREAD


@dataclass
class Calibration:
    """Ceilings by instruction set and number of threads."""

    isa: str  # the one that is used unless another is forced
    cpu: str
    cores: int
    torch: str
    l3_bytes: int
    bf16_ceiling: str  # how the bf16 ceiling was found, in words
    fma: dict[str, dict[int, Ceiling]] = field(default_factory=dict)
    dot: dict[str, dict[int, Ceiling]] = field(default_factory=dict)
    read: dict[int, Ceiling] = field(default_factory=dict)

    @property
    def threads(self) -> list[int]:
        return sorted(self.read)

    def rates(self, threads: int, isa: str | None = None) -> Rates:
        isa = isa or self.isa
        fma = self.fma[isa][threads]
        dot = self.dot.get(isa, {}).get(threads, fma)
        return Rates(fma.best, dot.best, self.read[threads].best)

    def steady(self, floor: Floor, dtype: str, threads: int, isa: str | None = None) -> bool:
        """Whether the ceiling that set this floor was measured without disturbance."""
        isa = isa or self.isa
        if floor.bound == "bytes":
            return self.read[threads].steady
        dot = self.dot.get(isa, {}).get(threads) if dtype == "bf16" else None
        return (dot or self.fma[isa][threads]).steady

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ready": all(c.steady for c in self.fma[self.isa].values())}


@contextmanager
def forced_isa(isa: str | None) -> Iterator[None]:
    """Run treeattn's kernels of one instruction set; None leaves the choice as it is."""
    before = os.environ.get(_ISA_VARIABLE)
    if isa is not None:
        os.environ[_ISA_VARIABLE] = isa
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_ISA_VARIABLE, None)
        else:
            os.environ[_ISA_VARIABLE] = before


def spend(dots: bool, rounds: int, threads: int) -> float:
    """Floating point operations done by `rounds` rounds on each of `threads` threads."""
    flops = torch.zeros(threads, dtype=torch.float64)
    torch.ops.treeattn._calibrate_flops(dots, rounds, flops)
    return float(flops.sum())


def available_isas() -> list[str]:
    """The instruction sets of this CPU, ascending; only the forced one when one is forced."""
    if os.environ.get(_ISA_VARIABLE):
        return [os.environ[_ISA_VARIABLE]]
    found = []
    for isa in ISAS:
        with forced_isa(isa):
            try:
                spend(False, 1, 1)
            except ValueError as error:
                if "not supported by this CPU" not in str(error):
                    raise
                continue
            found.append(isa)
    return found


def calibrate(threads: list[int], effort: Effort, *, best_isa_only: bool = False) -> Calibration:
    """Measure every ceiling on each number of threads."""
    isas = available_isas()[-1:] if best_isa_only else available_isas()
    result = Calibration(
        isa=isas[-1],
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        torch=torch.__version__,
        l3_bytes=l3_bytes(),
        bf16_ceiling="fp32 FMA rate: this CPU has no bf16 dot product that treeattn uses",
    )
    data = torch.ones(_READ_BYTES // 4)
    for count in threads:
        for isa in isas:
            with forced_isa(isa):
                _add_flops(result.fma.setdefault(isa, {}), False, count, effort)
                if spend(True, 1, 1):
                    _add_flops(result.dot.setdefault(isa, {}), True, count, effort)
        result.read[count] = _read(data, count, effort)
    if result.isa in result.dot:
        result.bf16_ceiling = "bf16 dot product (vdpbf16ps)"
    return result


def _add_flops(rates: dict[int, Ceiling], dots: bool, threads: int, effort: Effort) -> None:
    """Measure the rate of `threads` threads; `rates` holds that of fewer, if any."""
    alone = max((c.best / count for count, c in rates.items()), default=0.0)
    least = MIN_SCALING * threads * alone
    total = spend(dots, _ROUNDS, threads)
    rates[threads] = _ceiling(
        total, lambda: spend(dots, _ROUNDS, threads), threads, effort, least=least
    )


def _read(data: torch.Tensor, threads: int, effort: Effort) -> Ceiling:
    parts, sums = data.view(threads, -1), torch.zeros(threads)
    read = torch.ops.treeattn._calibrate_read
    return _ceiling(data.nbytes, lambda: read(parts, sums), threads, effort)


def _ceiling(
    amount: float, run: Callable[[], object], threads: int, effort: Effort, *, least: float = 0.0
) -> Ceiling:
    """The rate of `amount` per run; not valid below `least`.

    Unsteady ones and those below `least` are measured anew, at most twice.
    """
    tries = []
    for _ in range(3):
        timing = compare({"": Work(run, warm=False)}, threads=threads, effort=effort)[""]
        spread = 1.0 - timing.best / timing.median
        rate = amount / timing.best / 1e3
        tries.append(Ceiling(rate, spread, timing.valid and rate >= least))
        if tries[-1].steady:
            break
    # The highest rate seen is the ceiling, however steady the moment in which it was seen.
    return replace(tries[-1], best=max(c.best for c in tries if c.valid or not tries[-1].valid))


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def l3_bytes() -> int:
    """Size of the last-level cache; 32 MiB where the system does not say."""
    size = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    if size.exists() and size.read_text().strip().endswith("K"):
        return int(size.read_text().strip()[:-1]) << 10
    return 32 << 20
