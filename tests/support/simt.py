# SPDX-License-Identifier: Apache-2.0
"""The host emulator of the CUDA kernels: the module _simt, its orders and its counters."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
import treeattn
from torch import Tensor
from treeattn import _namespace

ROOT = Path(__file__).resolve().parent.parent.parent
ORDERS = ("forward", "reverse", "random:1")
MISSING = "no _simt module: `make test` makes one, or `cmake --build build/dev` in a checkout"


def built(name: str) -> Path | None:
    """A file of the emulator: from TREEATTN_SIMT_BUILD, of preset dev, or of `make test`."""
    named = os.environ.get("TREEATTN_SIMT_BUILD")
    builds = [ROOT / "build" / name for name in ("dev", "simt", "release")]
    if named:
        builds = [ROOT / named]
    places = [build / "treeattn" for build in builds]
    if not named:
        places.insert(0, Path(treeattn.__file__).parent)
    return next((place / name for place in places if (place / name).is_file()), None)


@cache
def module() -> ModuleType | None:
    """Registers torch.ops.treeattn_simt; None where the emulator was not built."""
    path = built("_simt.abi3.so")
    if path is None:
        return None
    loader = importlib.machinery.ExtensionFileLoader("_simt", str(path))
    spec = importlib.util.spec_from_file_location("_simt", path, loader=loader)
    assert spec is not None
    loaded = importlib.util.module_from_spec(spec)
    loader.exec_module(loaded)
    return loaded


def use(patch: pytest.MonkeyPatch, order: str) -> None:
    """Let treeattn's ops run on the emulator, in one order, until the patch is undone."""
    if module() is None:
        pytest.skip(MISSING)
    patch.setattr(_namespace, "ops", torch.ops.treeattn_simt)
    patch.setenv("TREEATTN_SIMT_ORDER", order)


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """What torch allocates starts as NaN, or as the largest integer, not as what was there."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def take_counters() -> dict[str, int]:
    """What the emulator counted since the last call, by name."""
    simt = module()
    assert simt is not None
    out = torch.zeros(len(simt.COUNTERS), dtype=torch.int64)
    torch.ops.treeattn_simt._counters(out)
    return dict(zip(simt.COUNTERS, out.tolist(), strict=True))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def assert_same_in_every_order(
    run: Callable[[], tuple[Tensor, ...]], orders: tuple[str, ...] = (*ORDERS, "random:2")
) -> tuple[Tensor, ...]:
    """Every tensor that `run` returns has the same bits whichever thread goes first."""
    results = []
    for order in orders:
        with pytest.MonkeyPatch.context() as patch, poisoned_outputs():
            use(patch, order)
            results.append(run())
    for order, result in zip(orders, results, strict=True):
        for i, (tensor, first) in enumerate(zip(result, results[0], strict=True)):
            assert same_bits(tensor, first), f"result {i} differs between {orders[0]} and {order}"
    return results[0]
