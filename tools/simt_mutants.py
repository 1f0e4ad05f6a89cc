# SPDX-License-Identifier: Apache-2.0
"""Put faults into the CUDA kernels, one at a time, and see the emulator's tests catch each.

    make simt-mutants                                  # all of tools/simt_faults
    python tools/simt_mutants.py --only accept.tie     # those whose names contain it
    python tools/simt_mutants.py --list

The kernels are copied to build/mutants, so neither the working tree nor its build is touched. Only
_simt is built there. Tests run from the working tree against that build. A fault counts as caught
when the tests named beside it pass without it and fail, crash or hang with it. Exit status 1: one
survived, does not compile, or its text does not occur exactly once.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simt_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
COPIED = ("CMakeLists.txt", "csrc", "tests/simt", "tests/bench", "bench/micro")  # CMake looks there
BUILD = COPY / "build"
TEST_SECONDS = 300  # a fault may make a kernel run for ever
NO_TESTS, FAILED_TESTS = 5, 1  # pytest's exit statuses


@dataclass(frozen=True)
class Verdict:
    caught: bool
    by: str
    seconds: float


def mutated(fault: Fault, text: str) -> str:
    """`text` with the fault in it."""
    count = text.count(fault.text)
    if count != 1:
        raise ValueError(f"{fault.name}: its text occurs {count} times in {fault.file}, must be 1")
    if fault.text == fault.replacement:
        raise ValueError(f"{fault.name}: it changes nothing")
    return text.replace(fault.text, fault.replacement)


def stale(faults: Iterable[Fault]) -> list[str]:
    """What no longer fits the sources, in words."""
    found = []
    for fault in faults:
        try:
            mutated(fault, (ROOT / fault.file).read_text())
        except ValueError as error:
            found.append(str(error))
    return found


def copy_tree() -> None:
    """Bring the copy up to date; files that are the same keep their times, so builds stay small."""
    for name in COPIED:
        source = ROOT / name
        found = source.rglob("*") if source.is_dir() else [source]
        wanted = {path for path in found if path.is_file()}
        for path in wanted:
            put(path.relative_to(ROOT), path.read_bytes())
        for old in (COPY / name).rglob("*"):
            if old.is_file() and ROOT / old.relative_to(COPY) not in wanted:
                old.unlink()


def put(name: Path | str, content: bytes) -> None:
    target = COPY / name
    if not target.is_file() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def configure() -> None:
    if (BUILD / "CMakeCache.txt").is_file():
        return
    flags = "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"  # to compile sooner
    modules = f"-DPython_EXECUTABLE={sys.executable}", f"-DTREEATTN_OUTPUT_DIR={BUILD}/treeattn"
    command = ["cmake", "-S", str(COPY), "-B", str(BUILD), "-G", "Ninja", "-DTREEATTN_SIMT=ON"]
    subprocess.run([*command, *flags, *modules], check=True, stdout=sys.stderr)


def build() -> str:
    """Nothing, or the compiler's first complaint."""
    command = ["cmake", "--build", str(BUILD), "--target", "_simt"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return ""
    lines = result.stdout.splitlines()
    return next((line for line in lines if "error" in line), f"build failed: {lines[-1:]}")


def run_tests(arguments: str) -> Verdict:
    """pytest up to its first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-rfE"]
    env = os.environ | {"TREEATTN_SIMT_BUILD": str(BUILD)}
    start = time.monotonic()
    try:
        result = subprocess.run(
            [*command, "-p", "no:cacheprovider", *shlex.split(arguments)],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Verdict(True, f"more than {TEST_SECONDS} s", TEST_SECONDS)
    return verdict_of(result.returncode, result.stdout, time.monotonic() - start)


def verdict_of(status: int, output: str, seconds: float) -> Verdict:
    if status == 0 and re.search(r"\b[1-9]\d* passed", output):
        return Verdict(False, "nobody", seconds)
    if status in (0, NO_TESTS):
        return Verdict(False, "no test: nothing ran", seconds)
    if status < 0:
        return Verdict(True, f"a crash (signal {-status})", seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if status == FAILED_TESTS and failed:
        return Verdict(True, failed[1].split("/")[-1], seconds)
    return Verdict(False, f"no test: pytest exited with {status}", seconds)


def try_fault(fault: Fault) -> Verdict:
    original = (ROOT / fault.file).read_text()
    start = time.monotonic()
    try:
        put(fault.file, mutated(fault, original).encode())
        if complaint := build():
            return Verdict(False, f"the compiler alone: {complaint}", time.monotonic() - start)
        verdict = run_tests(fault.tests)
    finally:
        put(fault.file, original.encode())
    return Verdict(verdict.caught, verdict.by, time.monotonic() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--list", action="store_true", help="name the faults and stop")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.name]
    if arguments.list:
        print("\n".join(f"{fault.name:34} {fault.file}" for fault in faults))
        return 0
    if not faults:
        raise SystemExit(f"simt_mutants: no fault has a name with {arguments.only!r}")
    if found := stale(faults):
        raise SystemExit("simt_mutants: " + "\nsimt_mutants: ".join(found))
    copy_tree()
    configure()
    if complaint := build():
        raise SystemExit(f"simt_mutants: the kernels as they are do not build: {complaint}")
    green = {tests: run_tests(tests) for tests in dict.fromkeys(f.tests for f in faults)}
    survivors = 0
    width = max(len(fault.name) for fault in faults)
    print(f"{'fault':{width}}  {'':8}  {'s':>4}  caught by", flush=True)
    for fault in faults:
        verdict = green[fault.tests]
        if verdict.by == "nobody":
            verdict = try_fault(fault)
        else:
            verdict = Verdict(False, f"red without the fault: {verdict.by}", verdict.seconds)
        survivors += not verdict.caught
        word = "caught" if verdict.caught else "SURVIVED"
        print(f"{fault.name:{width}}  {word:8}  {verdict.seconds:4.0f}  {verdict.by}", flush=True)
    print(f"{len(faults) - survivors} of {len(faults)} faults caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
