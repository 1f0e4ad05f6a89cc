# SPDX-License-Identifier: Apache-2.0
"""The microbenchmark programs: built without torch and Python, self-checked, rows as promised."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MEASURED = {"us", "p20_us", "p80_us", "gbs", "over_floor"}
COLUMNS = {
    "micro_attention_cpu": {"model", "dtype", "ctx", "nodes", "tree", "isa", "threads", "us"}
    | {"p20_us", "p80_us", "gflops", "peak_gflops", "floor_us", "over_floor"},
    "micro_accept_cpu": {"rule", "dtype", "vocab", "isa", "nodes", "accepted", "bytes", "read_gbs"}
    | MEASURED,
    "micro_remap_cpu": {"model", "batch", "accepted", "threads", "rows", "bytes", "copy_us"}
    | MEASURED,
}
program = pytest.mark.parametrize("program", COLUMNS)


def run(build: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The program's exit status and output; any CPU, whatever the environment forces."""
    env = {name: value for name, value in os.environ.items() if name != "TREEATTN_CPU_ISA"}
    command = [str(build / program), *options]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_neither_python_nor_torch_is_looked_for(configured_alone: Path) -> None:
    cache = (configured_alone / "CMakeCache.txt").read_text()
    assert "TREEATTN_MODULES:BOOL=OFF" in cache
    assert "Python_EXECUTABLE" not in cache
    rules = (configured_alone / "build.ninja").read_text()
    assert "libtreeattn_cpu.a" in rules and "libtorch" not in rules


@program
def test_quick_rows(micro_build: Path, program: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = run(micro_build, program, "--quick", "--json", str(file))
    assert done.returncode == 0, done.stderr
    check, blank, header, *lines = done.stdout.splitlines()
    assert check.startswith("self-check: ") and "agree with the scalar loop" in check
    rows = json.loads(file.read_text())
    assert blank == "" and len(lines) == len(rows) > 1
    for row, line in zip(rows, lines, strict=True):
        assert set(row) == COLUMNS[program]
        assert header.split() == list(row) and len(line.split()) == len(row)
        for name, value in row.items():
            if not isinstance(value, str):
                assert math.isfinite(value), (name, row)
                assert value > 0 or name == "ctx", (name, row)
        assert row["p20_us"] <= row["us"] <= row["p80_us"]
    assert len({tuple(v for v in row.values() if not isinstance(v, float)) for row in rows}) == len(
        rows
    ), "a case appears twice"


def test_filters_must_all_match(micro_build: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    filters = ["--filter", "smollm2", "--filter", " threads1 "]
    done = run(micro_build, "micro_remap_cpu", "--quick", *filters, "--json", str(file))
    assert done.returncode == 0, done.stderr
    cases = {(row["model"], row["threads"]) for row in json.loads(file.read_text())}
    assert cases == {("smollm2", 1)}


@program
def test_check_only_measures_nothing(micro_build: Path, program: str) -> None:
    done = run(micro_build, program, "--check-only")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5 and done.stdout.count("\n") == 2


@program
def test_help(micro_build: Path, program: str) -> None:
    done = run(micro_build, program, "--help")
    assert done.returncode == 0 and done.stderr == ""
    for option in ("--quick", "--check-only", "--filter TEXT", "--json FILE", "--help"):
        assert option in done.stdout


@program
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--fast"], "unknown option '--fast'; --help lists what there is"),
        (["--items", "A1"], "unknown option '--items'; --help lists what there is"),
        (["--json"], "--json needs a value"),
        (["--json", "/nowhere/rows.json"], "--json: cannot write /nowhere/rows.json"),
        (["--quick", "--filter", "gpu"], "--filter: no case matches; --help says how"),
    ],
)
def test_wrong_arguments(
    micro_build: Path, program: str, options: list[str], sentence: str
) -> None:
    done = run(micro_build, program, *options)
    assert done.returncode == 2
    assert done.stderr == f"{program}: {sentence}\n"
