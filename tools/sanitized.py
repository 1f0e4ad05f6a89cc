# SPDX-License-Identifier: Apache-2.0
"""Run pytest on the modules of preset debug, which AddressSanitizer and UBSan watch.

    python tools/sanitized.py       # the tests of every op but the slowest, on CPU and emulator
    python tools/sanitized.py tests/test_remap_kv.py -k simt

Builds what changed, then runs the package from build/debug. The sanitizers' runtime has to come
first in a process whose program knows nothing of it, and libstdc++ with it, so that exceptions are
seen. Leaks are not looked for: torch and Python keep much until the end. GCC only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "debug"
RUNTIMES = "libasan.so", "libstdc++.so"
# What each op does to memory; the laws of accept_path, over many draws, are no matter of memory.
TESTS = (
    "tests/simt",
    "tests/test_plan_tree.py",
    "tests/test_write_kv.py",
    "tests/test_tree_attention.py",
    "tests/test_tree_attention_bits.py",
    "tests/test_tree_attention_deep.py",
    "tests/test_tree_attention_errors.py",
    "tests/test_accept_path.py",
    "tests/test_accept_path_device.py",
    "tests/test_accept_path_drafts.py",
    "tests/test_accept_path_rows.py",
    "tests/test_accept_path_trials_device.py",
    "tests/test_remap_kv.py",
    "tests/test_remap_kv_device.py",
    "tests/test_merge_states.py",
)

# One order of the threads shows what they touch, and instrumented ones are slow: the largest
# vocabulary, statistics, and what repeats a call for every node of a tree would take an hour.
LEFT_OUT = (
    "reverse",
    "random",
    "49152",
    "every_walk",
    "exp_error_bound",
    "equals_decoding_its_path",
    "frequencies",
)


def build() -> None:
    """Configure once, compile what changed."""
    os.chdir(ROOT)
    if not (BUILD / "CMakeCache.txt").is_file():
        configure = ["cmake", "--preset", "debug", f"-DPython_EXECUTABLE={sys.executable}"]
        subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(BUILD)], check=True, stdout=sys.stderr)


def link_package() -> None:
    """The package's Python files beside the modules of the build."""
    package = ROOT / "python" / "treeattn"
    for source in package.rglob("*"):
        if source.is_dir() or source.suffix in (".so", ".pyc"):
            continue
        target = BUILD / "treeattn" / source.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(source)


def runtimes() -> list[str]:
    """The libraries to load first, as the compiler of the build has them."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)
    assert found is not None
    paths = []
    for name in RUNTIMES:
        command = [found[1], f"-print-file-name={name}"]
        path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(path):
            raise SystemExit(f"sanitized: {found[1]} has no {name}; preset debug needs GCC")
        paths.append(path)
    return paths


def environment() -> dict[str, str]:
    return os.environ | {
        "LD_PRELOAD": " ".join(runtimes()),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(BUILD), os.environ.get("PYTHONPATH", "")]),
        "TREEATTN_SIMT_BUILD": str(BUILD),
    }


def main(arguments: list[str]) -> int:
    build()
    link_package()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    small = [*TESTS, "-k", f"not ({' or '.join(LEFT_OUT)})"]
    return subprocess.run([*command, *(arguments or small)], env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
