# SPDX-License-Identifier: Apache-2.0
"""Drives CMake for the two extension modules. Metadata lives in pyproject.toml."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import build_options


class CMakeExtension(Extension):
    """A module that CMake builds; `name` is where it lands in the package."""

    def __init__(self, name: str, *, abi3: bool) -> None:
        super().__init__(name, sources=[], py_limited_api=abi3)


class CMakeBuild(build_ext):
    """Configures once, then builds both modules straight into their final folder."""

    def run(self) -> None:
        if importlib.util.find_spec("torch") is None:
            raise SystemExit(
                "treeattn: torch is not installed in this environment, and building needs its headers.\n"
                "Run: pip install torch==2.13.0 && pip install --no-build-isolation ."
            )
        print(f"treeattn: {build_options.cuda_plan(os.environ)}", file=sys.stderr, flush=True)
        output = Path(self.get_ext_fullpath("treeattn._C")).resolve().parent
        build_dir = Path(self.build_temp).resolve()
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build_dir),
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DTREEATTN_OUTPUT_DIR={output}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        subprocess.run(configure, check=True)
        jobs = build_options.num_jobs(os.environ)
        subprocess.run(["cmake", "--build", str(build_dir), "--parallel", str(jobs)], check=True)


setup(
    ext_modules=[
        CMakeExtension("treeattn._C", abi3=True),
        CMakeExtension("treeattn._host", abi3=False),
    ],
    cmdclass={"build_ext": CMakeBuild},
)
