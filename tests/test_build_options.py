# SPDX-License-Identifier: Apache-2.0
"""TREEATTN_CUDA, TORCH_CUDA_ARCH_LIST and MAX_JOBS, as the build reads them."""

from __future__ import annotations

import os
import re
import shutil
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
    plan = build_options.cuda_plan(env, "13.0")
    assert plan == build_options.CudaPlan("no nvcc found: building the CPU part only")


def test_cuda_1_without_nvcc_names_the_searched_paths(no_nvcc: dict[str, str]) -> None:
    with pytest.raises(SystemExit) as stop:
        build_options.cuda_plan(no_nvcc | {"TREEATTN_CUDA": "1", "CUDA_HOME": "/opt/none"})
    for place in ("/opt/none/bin/nvcc", "/usr/local/cuda/bin/nvcc", "nvcc on PATH"):
        assert place in str(stop.value)


def test_cuda_0_does_not_mention_nvcc(no_nvcc: dict[str, str]) -> None:
    plan = build_options.cuda_plan(no_nvcc | {"TREEATTN_CUDA": "0"})
    assert "nvcc" not in plan.text and not plan.entries


def test_cuda_0_wins_over_nvcc_and_a_cuda_torch(with_nvcc: dict[str, str]) -> None:
    plan = build_options.cuda_plan(with_nvcc | {"TREEATTN_CUDA": "0"}, "13.0")
    assert plan == build_options.CudaPlan("building the CPU part only")


def test_nvcc_is_found_in_cuda_home(with_nvcc: dict[str, str]) -> None:
    found, _ = build_options.find_nvcc(with_nvcc)
    assert found == with_nvcc["CUDA_HOME"] + "/bin/nvcc"


def test_auto_builds_the_kernels_where_torch_has_cuda(with_nvcc: dict[str, str]) -> None:
    without = build_options.cuda_plan(with_nvcc, None)
    assert "TREEATTN_CUDA=1 adds the CUDA kernels" in without.text and not without.entries
    assert build_options.cuda_plan(with_nvcc, "13.0").entries[0] == "-DTREEATTN_CUDA=ON"


def test_cuda_1_builds_the_kernels_whatever_torch_is(with_nvcc: dict[str, str]) -> None:
    env = with_nvcc | {"TREEATTN_CUDA": "1", "TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX"}
    plan = build_options.cuda_plan(env, None)
    nvcc = with_nvcc["CUDA_HOME"] + "/bin/nvcc"
    assert plan.text == f"building with CUDA kernels for 8.0;9.0+PTX by {nvcc}"
    assert plan.entries == (
        "-DTREEATTN_CUDA=ON",
        "-DTREEATTN_CUDA_ARCHS=8.0;9.0+PTX",
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
    )


def test_cmake_has_the_same_default_archs() -> None:
    text = (TOOLS.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    assert f'set(TREEATTN_CUDA_ARCHS "{build_options.DEFAULT_ARCHS}" CACHE STRING' in text


@pytest.mark.slow
@pytest.mark.parametrize("text", ["8.0;12.0+PTX", "8.0 12.0+PTX"])
@pytest.mark.parametrize("variable", ["TORCH_CUDA_ARCH_LIST", "TREEATTN_CUDA_ARCHS"])
def test_cmake_compiles_for_the_archs_that_are_named(
    variable: str, text: str, tmp_path: Path
) -> None:
    nvcc, _ = build_options.find_nvcc(os.environ)
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake = shutil.which("cmake", path=tools)  # the environment's own: a system's may be too old
    if nvcc is None or cmake is None or shutil.which("ninja", path=tools) is None:
        pytest.skip("needs nvcc, cmake and ninja")
    command = [cmake, "--preset", "cuda", "-B", tmp_path, "-DTREEATTN_MODULES=OFF"]
    command += [f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    env = {name: os.environ[name] for name in os.environ if name != "TORCH_CUDA_ARCH_LIST"}
    env["PATH"] = tools
    if variable == "TORCH_CUDA_ARCH_LIST":
        env[variable] = text
    else:
        command.append(f"-D{variable}={text}")
    subprocess.run(command, cwd=TOOLS.parent, env=env, check=True, stdout=subprocess.DEVNULL)
    codes = re.findall(r"code=\[(\w+)\]", (tmp_path / "build.ninja").read_text(encoding="utf-8"))
    assert set(codes) == {"sm_80", "sm_120", "compute_120"}


@pytest.mark.parametrize(
    ("line", "version"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda: Optional[str] = None", None), ("", None)],
)
def test_torch_cuda_is_read_from_its_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, version: str | None
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip = '9.9'\n")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert build_options.torch_cuda() == version


@pytest.mark.parametrize("mode", ["yes", "2", "AUTO"])
def test_bad_cuda_mode(mode: str) -> None:
    with pytest.raises(SystemExit, match=f"TREEATTN_CUDA must be 0, 1 or auto, got '{mode}'"):
        build_options.cuda_plan({"TREEATTN_CUDA": mode})


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("8.0", ["8.0"]),
        ("8.0;9.0+PTX", ["8.0", "9.0+PTX"]),
        ("8.0 8.6, 9.0a", ["8.0", "8.6", "9.0a"]),
        ("12.0f+PTX", ["12.0f+PTX"]),
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
