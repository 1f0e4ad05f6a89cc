# SPDX-License-Identifier: Apache-2.0
"""What each CUDA kernel takes of an SM, per arch, read from the compiled code; needs no GPU.

    python tools/kernel_resources.py                                     # a table
    python tools/kernel_resources.py --markdown docs/kernel_resources.md # announce a change
    python tools/kernel_resources.py --check docs/kernel_resources.md    # what CI runs

Registers, local memory and instructions come from the objects of the CUDA build (cuobjdump).
Dynamic shared memory and threads are what launchers ask for: the host emulator notes every launch
of tests/support/every_kernel.py, which reaches every kernel. Exit status 3: nvcc or cuobjdump is
missing.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from build_options import find_nvcc
from cubins import INSTRUCTIONS, WHEELS, Code, find_cuobjdump, read_code, short_name
from occupancy import RESERVED_SHARED_BYTES, SMS, ctas_per_sm

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 3
# By kernel: CTAs per SM that hide the latency of each other's loads, where that much shared memory
# is there, and bytes that Q and two stages of 64 keys take.
LIMITS = {
    r"tree_attention_kernel<.*, 64, \w+>>": (3, 40 * 1024),
    r"tree_attention_kernel<.*, 128, \w+>>": (2, 80 * 1024),
}
COMPILER = "Compiler: "


@dataclass(frozen=True)
class Launch:
    """The CTA that a launcher asks for."""

    threads: int
    shared_bytes: int  # dynamic


@dataclass(frozen=True)
class Row:
    kernel: str
    arch: str
    threads: int
    registers: int
    shared_bytes: int
    spill_bytes: int
    local_bytes: int
    ctas_per_sm: int
    instructions: dict[str, int]


def build(folder: Path, archs: list[str], nvcc: str) -> Path:
    """The library of all kernels; a tree that is there is built as it was configured."""
    if not (folder / "CMakeCache.txt").is_file():
        dotted = ";".join(f"{arch[:-1]}.{arch[-1]}" for arch in archs)
        options = [
            "-DTREEATTN_MODULES=OFF",
            "-DTREEATTN_CUDA=ON",
            f"-DTREEATTN_CUDA_ARCHS={dotted}",
        ]
        configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options]
        _run([*configure, f"-DCMAKE_CUDA_COMPILER={nvcc}"])
    _run(["cmake", "--build", str(folder), "--target", "treeattn_cuda"])
    return folder / "csrc" / "cuda" / "libtreeattn_cuda.a"


def _run(command: list[str]) -> None:
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        raise SystemExit(f"kernel_resources: {' '.join(command)} failed")


def read_launches(log: Path) -> dict[str, Launch]:
    """The largest CTA of each kernel in the emulator's log of launches."""
    largest: dict[tuple[str, int], Launch] = {}
    for line in set(log.read_text().splitlines()):
        module, offset, threads, shared = line.split("\t")
        key = module, int(offset)
        seen = largest.get(key, Launch(0, 0))
        largest[key] = Launch(max(seen.threads, int(threads)), max(seen.shared_bytes, int(shared)))
    launches = {}
    for module in {module for module, _ in largest}:
        symbols = subprocess.run(["nm", "-C", module], capture_output=True, text=True, check=True)
        for line in symbols.stdout.splitlines():
            address, _, rest = line.partition(" ")
            if address and (launch := largest.get((module, int(address, 16)))):
                launches[short_name(rest[2:])] = launch
    return launches


def launch_all() -> dict[str, Launch]:
    """What the emulator sees when every kernel is launched."""
    path = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "launches")
        env = {"PYTHONPATH": os.pathsep.join(path), "TREEATTN_SIMT_LAUNCHES": str(log)}
        command = [sys.executable, "-m", "support.every_kernel"]
        if subprocess.run(command, env=os.environ | env).returncode != 0:
            raise SystemExit("kernel_resources: tests/support/every_kernel.py failed")
        return read_launches(log)


def make_rows(
    code: Mapping[tuple[str, str], Code], launches: Mapping[str, Launch], archs: list[str]
) -> list[Row]:
    """One row per kernel and arch; an error for a kernel that nobody launched."""
    rows = []
    for arch in archs:
        kernels = sorted(name for name, of in code if of == arch)
        if not kernels:
            raise SystemExit(f"kernel_resources: the build has no code for sm_{arch}")
        for kernel in kernels:
            if kernel not in launches:
                raise SystemExit(f"kernel_resources: every_kernel.py launches no {kernel}")
            c, launch = code[kernel, arch], launches[kernel]
            shared = c.shared_bytes + launch.shared_bytes
            ctas = ctas_per_sm(SMS[arch], launch.threads, c.registers, shared)
            rows.append(
                Row(
                    kernel=kernel,
                    arch=f"sm_{arch}",
                    threads=launch.threads,
                    registers=c.registers,
                    shared_bytes=shared,
                    spill_bytes=c.spill_bytes,
                    local_bytes=c.local_bytes,
                    ctas_per_sm=ctas,
                    instructions=c.instructions,
                )
            )
    return rows


def complaints(rows: list[Row]) -> list[str]:
    """What no kernel may do, whatever the committed table says."""
    found = []
    for row in rows:
        kernel = f"{row.kernel} on {row.arch}"
        if row.spill_bytes or row.local_bytes:
            found.append(
                f"{kernel}: {row.local_bytes} bytes of local memory per thread, {row.spill_bytes} "
                "bytes of spill stores; both must be 0"
            )
        sm = SMS[row.arch.removeprefix("sm_")]
        if row.ctas_per_sm < 1:
            found.append(f"{kernel}: a CTA of {row.shared_bytes} shared bytes does not fit an SM")
        for pattern, (wanted, most) in LIMITS.items():
            if not re.fullmatch(pattern, row.kernel):
                continue
            least = min(wanted, sm.shared_bytes // (most + RESERVED_SHARED_BYTES))
            if row.ctas_per_sm < least:
                found.append(f"{kernel}: {row.ctas_per_sm} CTAs per SM, must be {least} or more")
            if row.shared_bytes > most:
                found.append(f"{kernel}: {row.shared_bytes} shared bytes, must be {most} or fewer")
    return found


COLUMNS = ("kernel", "threads", "registers", "shared bytes", "local bytes", "spill bytes")


def markdown(rows: list[Row], compiler: str) -> str:
    """The committed page."""
    lines = [
        "# Resources of the CUDA kernels",
        "",
        "Made by `make kernel-table`, checked by `make kernel-resources` and CI: a change of this",
        "page is part of the change that makes it, and no kernel may spill or use local memory.",
        f"{COMPILER}{compiler}; another compiler's numbers are not compared.",
        "",
        "Threads and shared bytes are the largest CTA that `tests/support/every_kernel.py` makes a",
        "launcher ask for (accept_path: 151,936 ids). CTAs/SM is what fits by registers, shared",
        "memory and threads. Instructions are counted in the code, not as executed; LDG.128 is",
        "part of LDG.",
    ]
    for arch in dict.fromkeys(row.arch for row in rows):
        header = [*COLUMNS, "CTAs/SM", "instructions", *INSTRUCTIONS]
        lines += ["", f"## {arch}", "", _line(header), _line(["---", *["--:"] * (len(header) - 1)])]
        for row in rows:
            if row.arch == arch:
                numbers = (row.threads, row.registers, row.shared_bytes, row.local_bytes)
                counts = [row.instructions[name] for name in ("all", *INSTRUCTIONS)]
                cells = [*numbers, row.spill_bytes, row.ctas_per_sm, *counts]
                lines.append(_line([f"`{row.kernel}`", *map(str, cells)]))
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def compare(committed: str, now: str) -> list[str]:
    """Lines that differ; none where another compiler made the page."""
    compilers = [
        [line for line in page.splitlines() if line.startswith(COMPILER)]
        for page in (committed, now)
    ]
    if committed and compilers[0] != compilers[1]:
        print(f"kernel_resources: the page is not compared. {compilers[0]} is not {compilers[1]}")
        return []
    return list(
        difflib.unified_diff(
            committed.splitlines(), now.splitlines(), "committed", "now", lineterm="", n=0
        )
    )


def compiler_of(nvcc: str) -> str:
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d[\d.]*)", version)
    return f"nvcc {found[1] if found else 'of unknown version'}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--arch", default="80,90", help=f"of {', '.join(SMS)}; default 80,90")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "kernels", help="CMake build tree to use"
    )
    parser.add_argument("--json", type=Path, help="write all rows there")
    parser.add_argument("--markdown", type=Path, help="write the page there")
    parser.add_argument("--check", type=Path, help="fail unless the page there is up to date")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    archs = arguments.arch.split(",")
    if unknown := [arch for arch in archs if arch not in SMS]:
        raise SystemExit(f"kernel_resources: --arch must be of {', '.join(SMS)}, got {unknown[0]}")
    nvcc, searched = find_nvcc(os.environ)
    if nvcc is None:
        print("kernel_resources: skipped, no nvcc; searched " + ", ".join(searched))
        return SKIPPED
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        print(f"kernel_resources: skipped, no cuobjdump; pip install {WHEELS}")
        return SKIPPED
    code = read_code(build(arguments.build, archs, nvcc), cuobjdump)
    rows = make_rows(code, launch_all(), archs)
    page = markdown(rows, compiler_of(nvcc))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(page)
    if not (arguments.json or arguments.markdown or arguments.check):
        print(page, end="")
    found = complaints(rows)
    if arguments.check:
        committed = arguments.check.read_text() if arguments.check.is_file() else ""
        if difference := compare(committed, page):
            found += difference
            found.append(f"{arguments.check} is out of date: run `make kernel-table`, commit it")
    summary = f"kernel_resources: {len(rows)} kernels, no spills and no local memory"
    print("\n".join(found) or summary, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
