# SPDX-License-Identifier: Apache-2.0
"""Drives CMake for the extension modules. Metadata lives in pyproject.toml."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import build_options  # noqa: E402

if int(setuptools.__version__.split(".")[0]) < 77:
    raise SystemExit(
        f"treeattn: setuptools {setuptools.__version__} is too old for pyproject.toml's licence.\n"
        "Run: pip install --upgrade setuptools"
    )


class CMakeExtension(Extension):
    """A module that CMake builds; `name` is where it lands in the package."""

    def __init__(self, name: str, *, abi3: bool) -> None:
        super().__init__(name, sources=[], py_limited_api=abi3)


class CMakeBuild(build_ext):
    """Configures once, then builds all modules straight into their final folder."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_temp = "build/release"  # the tree of the preset

    def run(self) -> None:
        if importlib.util.find_spec("torch") is None:
            raise SystemExit(
                "treeattn: torch is not installed here, and the build needs its headers.\n"
                "Run: pip install torch==2.13.0 && pip install --no-build-isolation ."
            )
        jobs = build_options.num_jobs(os.environ)
        plan = build_options.cuda_plan(os.environ, build_options.torch_cuda())
        print(f"treeattn: {plan.text}, {jobs} jobs", file=sys.stderr, flush=True)
        cmake = _tool("cmake")
        if cmake is None:
            raise SystemExit("treeattn: the build needs cmake.\nRun: pip install cmake")
        build_dir = Path(self.build_temp).resolve()
        configure = [cmake, "--fresh", "-S", str(ROOT), "-B", str(build_dir)]
        _run([*configure, *self._cache_entries(), *plan.entries])
        _run([cmake, "--build", str(build_dir), "--parallel", str(jobs)])

    def _cache_entries(self) -> list[str]:
        package = ROOT / "python" / "treeattn"
        in_place = self.inplace or self.editable_mode
        output = package if in_place else Path(self.build_lib).resolve() / "treeattn"
        entries = [
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DTREEATTN_OUTPUT_DIR={output}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        ninja = _tool("ninja")
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
        return entries + (generator or ["-G", "Unix Makefiles"])


def _tool(name: str) -> str | None:
    """`name` on PATH, or beside an interpreter whose environment was not activated."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


def _run(command: list[str]) -> None:
    status = subprocess.run(command).returncode
    if status:
        raise SystemExit(f"treeattn: the build stopped ({status}): {' '.join(command)}")


setup(
    ext_modules=[
        CMakeExtension("treeattn._C", abi3=True),
        CMakeExtension("treeattn._host", abi3=False),
    ],
    cmdclass={"build_ext": CMakeBuild},
)
