# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test shares."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

# Read when torch is loaded. Its threads sleep while they wait: where another process needs the
# core, one that spins makes small ops five times slower. Two threads are enough to share work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest
import torch
import treeattn
from support import simt
from support.attention import AttentionCase
from support.through_device import ThroughDevice
from treeattn import _namespace

CPU_ISAS = ("portable", "avx2", "avx512", "avx512_bf16")
# The emulator takes part once per order in which it may run a kernel's threads.
EMULATED = tuple(f"simt-{order}" for order in simt.ORDERS)
ON_GPU = pytest.param("cuda", marks=pytest.mark.cuda)
THROUGH_GPU = pytest.param("cuda-through", marks=pytest.mark.cuda)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers in every run, whichever tests ran before it."""
    torch.manual_seed(0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `device` or `machine` runs on every machine that its file lists.

    `MACHINES = "all"`: the tensors are made on `device`. `"host"`: they lie in host memory, and
    calls pass through the GPU there. `"device"`: as "all" without the CPU. Else the CPU alone runs
    the file. A test that takes `cpu_isa` runs on the CPU once per instruction set, and only there
    in a file of "all". One that only uses the fixture has its tensors in host memory.
    """
    if "machine" not in metafunc.fixturenames:
        return
    which = getattr(metafunc.module, "MACHINES", "cpu")
    asks = {"machine", "device"} & set(inspect.signature(metafunc.function).parameters)
    cpu = [f"cpu-{isa}" for isa in CPU_ISAS] if "cpu_isa" in metafunc.fixturenames else ["cpu"]
    if which == "all" and len(cpu) > 1:
        which = "cpu"
    machines = [] if which == "device" else [*cpu]
    if which != "cpu":
        machines += EMULATED
        machines.append(ON_GPU if which in ("all", "device") and asks else THROUGH_GPU)
    metafunc.parametrize("machine", machines, indirect=True)


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What runs the ops: "cpu", "simt" (CUDA's kernels on the host) or "cuda"."""
    name, _, variant = str(request.param).partition("-")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if name == "cpu" and variant:
        force_cpu_isa(monkeypatch, variant)
    if name == "cuda" and variant:
        monkeypatch.setattr(_namespace, "ops", ThroughDevice(torch.ops.treeattn, "cuda"))
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
def device(machine: str, request: pytest.FixtureRequest) -> str:
    """Where a test's tensors lie; one test body serves every machine."""
    return "cuda" if request.node.callspec.params["machine"] == "cuda" else "cpu"


@pytest.fixture
def cpu_isa(machine: str, request: pytest.FixtureRequest) -> str:
    """The instruction set that the CPU is held to; elsewhere the machine's name."""
    return str(request.node.callspec.params["machine"]).removeprefix("cpu-")
