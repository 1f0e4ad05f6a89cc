# SPDX-License-Identifier: Apache-2.0
"""What the build reads from the environment: TREEATTN_CUDA, TORCH_CUDA_ARCH_LIST, MAX_JOBS.

Run as a program it checks them and prints, in one line, what a build here would contain.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

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
    """CMake's architectures for a TORCH_CUDA_ARCH_LIST like "8.0;9.0+PTX" or "8.0 9.0a"."""
    archs = []
    for item in re.split(r"[;,\s]+", text.strip()):
        match = _ARCH.fullmatch(item)
        if match is None:
            raise SystemExit(
                "treeattn: TORCH_CUDA_ARCH_LIST must list archs like 8.0;9.0+PTX, "
                f"got {item!r} in {text!r}"
            )
        number = match[1] + match[2] + match[3]
        archs.append(f"{number}-real")
        if match[4]:
            archs.append(f"{number}-virtual")
    return archs


def cuda_plan(env: Mapping[str, str]) -> str:
    """Check the CUDA options and say in one line what will be built."""
    mode = env.get("TREEATTN_CUDA") or "auto"
    if mode not in ("0", "1", "auto"):
        raise SystemExit(f"treeattn: TREEATTN_CUDA must be 0, 1 or auto, got {mode!r}")
    if env.get("TORCH_CUDA_ARCH_LIST"):
        arch_list(env["TORCH_CUDA_ARCH_LIST"])
    nvcc, searched = find_nvcc(env)
    if mode == "1" and nvcc is None:
        raise SystemExit("treeattn: TREEATTN_CUDA=1 but no nvcc; searched " + ", ".join(searched))
    if mode == "1":
        raise SystemExit("treeattn: TREEATTN_CUDA=1, but this version has CPU kernels only")
    if mode == "auto" and nvcc is None:
        return "no nvcc found: building the CPU part only"
    return "building the CPU part only (this version has no CUDA kernels)"


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
    print(f"treeattn: {cuda_plan(os.environ)}, {num_jobs(os.environ)} jobs")
