# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import treeattn
from support import simt
from support.attention import AttentionCase

# The emulator takes part once per order in which it may run a kernel's threads.
EVERY_MACHINE = (
    "cpu",
    *(f"simt-{order}" for order in simt.ORDERS),
    pytest.param("cuda", marks=pytest.mark.cuda),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `device` or `machine` runs on every machine that its file lists.

    A file whose ops all have CUDA kernels says so by `MACHINES = "all"`; else the CPU runs it.
    """
    if "machine" in metafunc.fixturenames:
        machines = getattr(metafunc.module, "MACHINES", "cpu")
        metafunc.parametrize(
            "machine", EVERY_MACHINE if machines == "all" else [machines], indirect=True
        )


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What runs the ops: "cpu", "simt" (CUDA's kernels on the host) or "cuda"."""
    name, _, order = str(request.param).partition("-")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if name != "simt":
        yield name
        return
    simt.use(monkeypatch, order)
    with simt.poisoned_outputs():
        yield name


@pytest.fixture
def device(machine: str) -> str:
    """Where a test's tensors lie; one test body serves every machine."""
    return "cuda" if machine == "cuda" else "cpu"


@pytest.fixture(params=["portable", "avx2", "avx512", "avx512_bf16"])
def cpu_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set that this CPU has, one after the other."""
    monkeypatch.setenv("TREEATTN_CPU_ISA", request.param)
    x = AttentionCase("", trees=(1,), context_lens=(0,)).make("cpu")
    try:
        treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    except ValueError as error:
        if "is not supported by this CPU" not in str(error):
            raise
        pytest.skip(str(error))
    return str(request.param)
