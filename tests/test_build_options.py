# SPDX-License-Identifier: Apache-2.0
"""TREEATTN_CUDA, TORCH_CUDA_ARCH_LIST and MAX_JOBS, as the build reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
import build_options  # noqa: E402


@pytest.fixture
def no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which no nvcc can be found, /usr/local/cuda included."""
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda p, mode: not str(p).startswith("/usr/local/cuda") and real(p, mode)
    )
    return {"PATH": str(tmp_path)}


@pytest.fixture
def with_nvcc(tmp_path: Path) -> dict[str, str]:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    return {"PATH": "", "CUDA_HOME": str(tmp_path)}


@pytest.mark.parametrize("mode", [None, "", "auto"])
def test_no_nvcc_is_one_line_not_an_error(no_nvcc: dict[str, str], mode: str | None) -> None:
    env = no_nvcc if mode is None else no_nvcc | {"TREEATTN_CUDA": mode}
    assert build_options.cuda_plan(env) == "no nvcc found: building the CPU part only"


def test_cuda_1_without_nvcc_names_the_searched_paths(no_nvcc: dict[str, str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_options.cuda_plan(no_nvcc | {"TREEATTN_CUDA": "1", "CUDA_HOME": "/opt/none"})
    for place in ("/opt/none/bin/nvcc", "/usr/local/cuda/bin/nvcc", "nvcc on PATH"):
        assert place in str(stop.value)


def test_cuda_0_does_not_mention_nvcc(no_nvcc: dict[str, str]) -> None:
    assert "nvcc" not in build_options.cuda_plan(no_nvcc | {"TREEATTN_CUDA": "0"})


def test_nvcc_is_found_in_cuda_home(with_nvcc: dict[str, str]) -> None:
    found, _ = build_options.find_nvcc(with_nvcc)
    assert found == with_nvcc["CUDA_HOME"] + "/bin/nvcc"
    assert "CPU part only" in build_options.cuda_plan(with_nvcc)


@pytest.mark.parametrize("mode", ["yes", "2", "AUTO"])
def test_bad_cuda_mode(mode: str) -> None:
    with pytest.raises(SystemExit, match=f"TREEATTN_CUDA must be 0, 1 or auto, got '{mode}'"):
        build_options.cuda_plan({"TREEATTN_CUDA": mode})


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("8.0", ["80-real"]),
        ("8.0;9.0+PTX", ["80-real", "90-real", "90-virtual"]),
        ("7.5 8.6, 9.0a", ["75-real", "86-real", "90a-real"]),
        ("12.0f+PTX", ["120f-real", "120f-virtual"]),
    ],
)
def test_arch_list(text: str, archs: list[str]) -> None:
    assert build_options.arch_list(text) == archs


@pytest.mark.parametrize("text", ["sm_80", "8", "8.0;x", "Ampere"])
def test_bad_arch_list(text: str) -> None:
    with pytest.raises(SystemExit, match="TORCH_CUDA_ARCH_LIST must list archs like"):
        build_options.cuda_plan({"TORCH_CUDA_ARCH_LIST": text})


def test_max_jobs_wins() -> None:
    assert build_options.num_jobs({"MAX_JOBS": "7"}) == 7


def test_jobs_default_to_what_cores_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_AVPHYS_PAGES": 2**30, "SC_PAGE_SIZE": 1}  # one GiB is free
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert build_options.num_jobs({}) == int(0.7 / build_options.GIB_PER_JOB)
    pages["SC_AVPHYS_PAGES"] = 2**40
    assert build_options.num_jobs({}) == 64


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_bad_max_jobs(text: str) -> None:
    with pytest.raises(SystemExit, match=f"MAX_JOBS must be a positive integer, got '{text}'"):
        build_options.num_jobs({"MAX_JOBS": text})


def test_as_a_program_it_prints_the_plan() -> None:
    command = [sys.executable, str(TOOLS / "build_options.py")]
    env = os.environ | {"TREEATTN_CUDA": "0", "MAX_JOBS": "3"}
    good = subprocess.run(command, env=env, capture_output=True, text=True)
    assert good.returncode == 0 and good.stdout.count("\n") == 1 and "3 jobs" in good.stdout
    env["TREEATTN_CUDA"] = "maybe"
    bad = subprocess.run(command, env=env, capture_output=True, text=True)
    assert bad.returncode == 1 and "TREEATTN_CUDA must be" in bad.stderr
