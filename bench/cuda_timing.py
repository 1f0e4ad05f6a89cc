# SPDX-License-Identifier: Apache-2.0
"""Interleaved sampling on a GPU: every candidate is a CUDA graph, timed between two events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.timing import Timing, quantile

MIN_CALLS = 16  # in a graph: fewer are timed with the graph's own launch
SAMPLES = 15
SAMPLE_US = 1000.0  # a sample replays the graph until it lasts this long
COLD_FACTOR = 4  # what the calls take turns over exceeds L2 this often
MAX_SETS = 64

_cuda: Any = torch.cuda  # some of its classes have no types


@dataclass(frozen=True)
class Turns:
    """`run(i)` works on data set i of `sets`; all its work is queued on the current stream."""

    run: Callable[[int], object]
    sets: int = 1


def cold_sets(bytes_of_a_call: float, l2_bytes: int) -> int:
    """How many data sets must take turns so that none is found in L2."""
    return min(MAX_SETS, 1 + int(COLD_FACTOR * l2_bytes / max(1.0, bytes_of_a_call)))


def calls_of(sets: int) -> int:
    """Calls of one graph: whole rounds over the sets."""
    return sets * -(-MIN_CALLS // sets)


class _Graph:
    def __init__(self, turns: Turns) -> None:
        self.calls = calls_of(turns.sets)
        stream = _cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(min(2, turns.sets)):
                turns.run(i)  # compiles, loads, allocates
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for call in range(self.calls):
                turns.run(call % turns.sets)
        self.graph.replay()
        self.repeats = max(1, min(1000, round(SAMPLE_US / max(1.0, self._us(1)))))

    def _us(self, times: int) -> float:
        start, stop = (_cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            self.graph.replay()
        stop.record()
        stop.synchronize()
        return 1e3 * float(start.elapsed_time(stop))

    def sample(self) -> float:
        """Microseconds of one call."""
        return self._us(self.repeats) / self.repeats / self.calls


def compare(candidates: Mapping[str, Turns]) -> tuple[dict[str, Timing], dict[str, str]]:
    """(times by name, of those that cannot be captured why): A, B, C, A, B, C, ..."""
    graphs: dict[str, _Graph] = {}
    failed: dict[str, str] = {}
    for name, turns in candidates.items():
        try:
            graphs[name] = _Graph(turns)
        except Exception as error:  # a peer may raise anything; ours must not fail
            if name == "ours":
                raise
            failed[name] = f"{type(error).__name__}: {str(error).strip()[:200]}"
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(SAMPLES):
        for name, graph in graphs.items():
            samples[name].append(graph.sample())
    return {name: _timing(times) for name, times in samples.items()}, failed


def _timing(samples: list[float]) -> Timing:
    ordered = sorted(samples)
    return Timing(
        median=statistics.median(ordered),
        p20=quantile(ordered, 0.2),
        p80=quantile(ordered, 0.8),
        best=ordered[0],
        n=len(ordered),
        other_load=None,
        valid=True,
    )


@dataclass(frozen=True)
class Ceilings:
    """What this GPU does at most, measured with torch in this process."""

    gpu: str
    l2_bytes: int
    copy_gbs: float  # read and written
    gemm_tflops: float  # bf16, 8192 x 8192 x 8192
    launch_us: float  # the smallest kernel, as one of many in a graph

    @property
    def text(self) -> str:
        return (
            f"{self.gpu}, torch {torch.__version__}: copy {self.copy_gbs:.0f} GB/s, bf16 GEMM "
            f"{self.gemm_tflops:.0f} TFLOP/s, launch {self.launch_us:.2f} us"
        )


def measure_ceilings() -> Ceilings:
    properties = torch.cuda.get_device_properties(0)
    l2_bytes = int(properties.L2_cache_size)
    source = torch.empty(max(1 << 29, 8 * l2_bytes), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = torch.empty_like(a)
    one = torch.zeros(1, device="cuda")
    times, _ = compare(
        {
            "ours": Turns(lambda i: target.copy_(source)),
            "gemm": Turns(lambda i: torch.mm(a, b, out=product)),
            "launch": Turns(lambda i: one.zero_()),
        }
    )
    return Ceilings(
        gpu=properties.name,
        l2_bytes=l2_bytes,
        copy_gbs=2 * source.numel() / times["ours"].p20 / 1e3,
        gemm_tflops=2 * 8192**3 / times["gemm"].p20 / 1e6,
        launch_us=times["launch"].p20,
    )
