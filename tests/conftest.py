# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test shares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch
import treeattn
from support import simt
from support.attention import AttentionCase

CPU_ISAS = ("portable", "avx2", "avx512", "avx512_bf16")
# The emulator takes part once per order in which it may run a kernel's threads.
EMULATED = tuple(f"simt-{order}" for order in simt.ORDERS)
ON_GPU = pytest.param("cuda", marks=pytest.mark.cuda)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `device` or `machine` runs on every machine that its file lists.

    A file whose ops all have CUDA kernels says so by `MACHINES = "all"`, or `"host"` where its
    tensors lie in host memory, or `"one_order"` where besides one order of threads is enough; else
    the CPU runs it. A test that takes `cpu_isa` runs on the CPU once per instruction set. A test
    that only uses the fixture leaves its tensors on the host too.
    """
    if "machine" not in metafunc.fixturenames:
        return
    which = getattr(metafunc.module, "MACHINES", "cpu")
    asks = {"machine", "device"} & set(inspect.signature(metafunc.function).parameters)
    cpu = [f"cpu-{isa}" for isa in CPU_ISAS] if "cpu_isa" in metafunc.fixturenames else ["cpu"]
    num_orders = {"cpu": 0, "one_order": 1}.get(which, len(EMULATED))
    on_gpu = [ON_GPU] if which == "all" and asks else []
    metafunc.parametrize("machine", [*cpu, *EMULATED[:num_orders], *on_gpu], indirect=True)


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What runs the ops: "cpu", "simt" (CUDA's kernels on the host) or "cuda"."""
    name, _, variant = str(request.param).partition("-")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if name == "cpu" and variant:
        force_cpu_isa(monkeypatch, variant)
    if name != "simt":
        yield name
        return
    simt.use(monkeypatch, variant)
    with simt.poisoned_outputs():
        yield name


def force_cpu_isa(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("TREEATTN_CPU_ISA", isa)
    x = AttentionCase("", trees=(1,), context_lens=(0,)).make("cpu")
    try:
        treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    except ValueError as error:
        if "is not supported by this CPU" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture
def device(machine: str) -> str:
    """Where a test's tensors lie; one test body serves every machine."""
    return "cuda" if machine == "cuda" else "cpu"


@pytest.fixture
def cpu_isa(machine: str, request: pytest.FixtureRequest) -> str:
    """The instruction set that the CPU is held to; elsewhere the machine's name."""
    return str(request.node.callspec.params["machine"]).removeprefix("cpu-")
