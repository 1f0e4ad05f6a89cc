# SPDX-License-Identifier: Apache-2.0
"""The CUDA benchmark programs on the emulator: right before fast, rows as promised, no GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MEASURED = {"us", "p20_us", "p80_us", "bytes", "floor_us", "bound", "over_floor", "gbs"}
MEASURED |= {"copy_gbs", "gbs_pct", "launch_us"}
# op -> (the columns of its cases, items, what picks a few small cases)
PROGRAMS = {
    "attention": (
        {"item", "model", "batch", "ctx", "nodes", "tree", "block", "call"}
        | {"gflop", "tflops", "mma_tflops", "mma_pct"},
        ["--items", "A3", "--filter", "smollm2", "--filter", "ctx1024", "--filter", "eagle"],
    ),
    "accept": (
        {"item", "rule", "dtype", "vocab", "batch", "nodes", "accepted", "way"},
        ["--quick", "--items", "P3", "--filter", " accepted1 "],
    ),
    "remap": (
        {"item", "model", "batch", "accepted", "path"},
        ["--quick", "--items", "R2"],
    ),
    "plan": (
        {"tree", "batch", "nodes"},
        ["--quick", "--filter", " batch1 ", "--filter", " nodes64 "],
    ),
}
op = pytest.mark.parametrize("op", PROGRAMS)


def run(build: Path, op: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(build / f"micro_{op}_emulated"), *options]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)


@op
def test_kernels_agree_with_the_cpu(micro_build: Path, op: str) -> None:
    done = run(micro_build, op, "--check-only", TREEATTN_SIMT_ORDER="reverse")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("self-check: ")
    assert "agree with the CPU kernel" in done.stdout


@op
def test_rows(micro_build: Path, op: str, tmp_path: Path) -> None:
    columns, options = PROGRAMS[op]
    file = tmp_path / "rows.json"
    done = run(micro_build, op, *options, "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    _, _, header, *lines = done.stdout.splitlines()
    assert len(rows) == len(lines) >= 1
    for row in rows:
        assert set(row) == columns | MEASURED and list(row) == header.split()
        assert all(math.isfinite(v) for v in row.values() if not isinstance(v, str)), row
        assert row["p20_us"] <= row["us"] <= row["p80_us"]
        floors = {
            "launch": row["launch_us"],
            "bytes": row["bytes"] / row["copy_gbs"] / 1e3,
            "mma": row.get("gflop", 0.0) / row.get("mma_tflops", 1.0) * 1e3,
        }
        assert row["floor_us"] == pytest.approx(max(floors.values()))
        assert row["floor_us"] == pytest.approx(floors[row["bound"]])
        if op == "attention":  # 9/3 heads of 64, 64 nodes of at most 9 levels behind 1024 keys
            assert row["bytes"] == 2 * (2 * 3 * 64 * (1024 + 64) + 2 * 9 * 64 * 64)
            per_key = 4 * 64 * 9 * 1e-9
            assert 64 * (1024 + 2) * per_key < row["gflop"] <= 64 * (1024 + 9) * per_key
        assert row["over_floor"] == pytest.approx(row["us"] / row["floor_us"])


@op
def test_without_a_gpu(micro_build: Path, op: str) -> None:
    done = run(micro_build, op, "--quick", TREEATTN_MICRO_NO_GPU="1")
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr == f"micro_{op}_cuda: needs a GPU: told to see none\n"
    assert run(micro_build, op, "--help", TREEATTN_MICRO_NO_GPU="1").returncode == 0


@op
def test_the_real_programs_without_a_gpu(op: str) -> None:
    program = ROOT / "build" / "micro_cuda" / f"micro_{op}_cuda"
    if not program.is_file():
        pytest.skip("not built: cmake --preset micro_cuda && cmake --build --preset micro_cuda")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run([str(program), "--quick"], capture_output=True, text=True)
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith(f"micro_{op}_cuda: needs a GPU: ")
    assert done.stderr.count("\n") == 1


def test_unknown_items_are_named(micro_build: Path) -> None:
    done = run(micro_build, "accept", "--items", "P1,A9")
    assert done.returncode == 2
    assert done.stderr == "micro_accept_cuda: --items: must be of P1, P2, P3, got 'A9'\n"
