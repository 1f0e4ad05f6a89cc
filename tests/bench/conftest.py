# SPDX-License-Identifier: Apache-2.0
"""The benchmark programs, built once for all tests of them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def find_tool(name: str) -> str | None:
    """`name` on PATH, or beside an interpreter whose environment was not activated."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


def configure(folder: Path) -> None:
    """The tree of the preset `micro` plus the emulator, in `folder`."""
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    if cmake is None or ninja is None:
        pytest.skip("needs cmake and ninja: pip install cmake ninja")
    if not any(map(find_tool, (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"))):
        pytest.skip("needs a C++20 compiler")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTREEATTN_MODULES=OFF", "-DTREEATTN_SIMT=ON"]
    options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    run_tool([cmake, "-S", str(ROOT), "-B", str(folder), *options])


def run_tool(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def configured_alone(tmp_path: Path) -> Path:
    configure(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def micro_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the CPU programs and the emulated CUDA ones: the developer's tree or the one of
    `make test`, brought up to date, else one of their own."""
    if named := os.environ.get("TREEATTN_MICRO_BUILD"):  # one that is there already
        return ROOT / named
    caches = (ROOT / "build" / name / "CMakeCache.txt" for name in ("dev", "release"))
    trees = (c.parent for c in caches if c.is_file() and "TREEATTN_SIMT:BOOL=ON" in c.read_text())
    cmake, tree = find_tool("cmake"), next(trees, None)
    if cmake is None or tree is None:
        tree = tmp_path_factory.mktemp("micro")
        configure(tree)
    build = [str(cmake), "--build", str(tree), "--parallel", "2"]
    with (tree / "micro.lock").open("w") as lock:  # workers of pytest-xdist share the tree
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_tool([*build, "--target", "micro", "micro_emulated"])
    return tree
