# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs, of the GPU and of the emulator, behind one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from treeattn import _namespace

Result = TypeVar("Result")


def capture(machine: str, step: Callable[[], Result]) -> tuple[Result, Callable[[], object]]:
    """What `step` returned while it was captured, and what runs its kernels again."""
    if machine == "cuda":
        return _on_gpu(step)
    ops, cpu = torch.ops.treeattn_simt, torch.empty(0)
    keeper = _Keeper(ops)
    ops._begin_capture(cpu)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_namespace, "ops", keeper)
            result = step()
    finally:
        ops._end_capture(cpu)
    return result, lambda: keeper.replay(cpu)


class _Keeper:
    """The emulator's ops; keeps all that they were given, as a graph keeps its memory."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._kept: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            self._kept.append(args)
            getattr(self._ops, name)(*args)

        return call

    def replay(self, cpu: Tensor) -> None:
        self._ops._replay(cpu)


def _on_gpu(step: Callable[[], Result]) -> tuple[Result, Callable[[], object]]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()  # before any capture, as torch asks; and nothing of it may wait for the GPU
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return result, graph.replay
