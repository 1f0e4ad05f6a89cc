# SPDX-License-Identifier: Apache-2.0
"""What the build reads from the environment: TREEATTN_CUDA, TORCH_CUDA_ARCH_LIST, MAX_JOBS.

Run as a program it checks them and prints, in one line, what a build here would contain.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_ARCHS = "8.0;8.9;9.0;10.0;12.0+PTX"  # CMakeLists.txt has the same default
GIB_PER_JOB = 0.5  # measured peak of the largest translation unit, rounded up
_ARCH = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")


def find_nvcc(env: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The CUDA compiler, and every path that was looked at."""
    homes = [env[name] for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    searched = [os.path.join(home, "bin", "nvcc") for home in [*homes, "/usr/local/cuda"]]
    for path in searched:
        if os.access(path, os.X_OK):
            return path, searched
    searched.append("nvcc on PATH")
    return shutil.which("nvcc", path=env.get("PATH")), searched


def arch_list(text: str) -> list[str]:
    """The items of a TORCH_CUDA_ARCH_LIST like "8.0;9.0+PTX" or "8.0 9.0a", checked."""
    archs = re.split(r"[;,\s]+", text.strip())
    for item in archs:
        if _ARCH.fullmatch(item) is None:
            raise SystemExit(
                "treeattn: TORCH_CUDA_ARCH_LIST must list archs like 8.0;9.0+PTX, "
                f"got {item!r} in {text!r}"
            )
    return archs


def torch_cuda() -> str | None:
    """The CUDA version of the installed torch, read without importing it; None for CPU builds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = os.path.join(spec.submodule_search_locations[0], "version.py")
    try:
        with open(path, encoding="utf-8") as file:
            match = re.search(r"^cuda\b.*= ['\"]([\d.]+)['\"]", file.read(), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


@dataclass(frozen=True)
class CudaPlan:
    """Whether the CUDA kernels are built, in words and in CMake's cache entries."""

    text: str
    entries: tuple[str, ...] = ()


def cuda_plan(env: Mapping[str, str], torch_cuda: str | None = None) -> CudaPlan:
    """Check the CUDA options and decide. `torch_cuda` is the CUDA version of the torch here.

    TREEATTN_CUDA=1 needs nvcc, but neither a GPU nor a torch with CUDA; auto, the default, builds
    the kernels where both nvcc and a torch with CUDA are found.
    """
    mode = env.get("TREEATTN_CUDA") or "auto"
    if mode not in ("0", "1", "auto"):
        raise SystemExit(f"treeattn: TREEATTN_CUDA must be 0, 1 or auto, got {mode!r}")
    archs = arch_list(env.get("TORCH_CUDA_ARCH_LIST") or DEFAULT_ARCHS)
    if mode == "0":
        return CudaPlan("building the CPU part only")
    nvcc, searched = find_nvcc(env)
    if mode == "1" and nvcc is None:
        raise SystemExit("treeattn: TREEATTN_CUDA=1 but no nvcc; searched " + ", ".join(searched))
    if nvcc is None:
        return CudaPlan("no nvcc found: building the CPU part only")
    if mode == "auto" and torch_cuda is None:
        return CudaPlan(
            "building the CPU part only (the torch here has no CUDA; TREEATTN_CUDA=1 adds the "
            "CUDA kernels all the same)"
        )
    names = ";".join(archs)
    return CudaPlan(
        f"building with CUDA kernels for {names} by {nvcc}",
        (
            "-DTREEATTN_CUDA=ON",
            f"-DTREEATTN_CUDA_ARCHS={names}",
            f"-DCMAKE_CUDA_COMPILER={nvcc}",
        ),
    )


def num_jobs(env: Mapping[str, str]) -> int:
    """Parallel compile jobs: MAX_JOBS, else what cores and free memory allow."""
    text = env.get("MAX_JOBS")
    if text:
        if not text.isdigit() or int(text) < 1:
            raise SystemExit(f"treeattn: MAX_JOBS must be a positive integer, got {text!r}")
        return int(text)
    cores = os.cpu_count() or 1
    try:
        free_gib = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (ValueError, OSError):
        return cores
    return max(1, min(cores, int(0.7 * free_gib / GIB_PER_JOB)))


if __name__ == "__main__":
    plan = cuda_plan(os.environ, torch_cuda())
    print(f"treeattn: {plan.text}, {num_jobs(os.environ)} jobs")
