# SPDX-License-Identifier: Apache-2.0
"""What cuobjdump says about the kernels of an object or library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from occupancy import RESERVED_SHARED_BYTES

WHEELS = "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
# Instructions worth a column: tensor core, shared memory to registers, global to shared memory,
# global loads and those of 16 bytes, local memory, special functions, barriers.
INSTRUCTIONS = ("HMMA", "LDSM", "LDGSTS", "LDG", "LDG.128", "LDL", "STL", "MUFU", "BAR")


@dataclass(frozen=True)
class Code:
    """One kernel as compiled for one arch."""

    registers: int
    shared_bytes: int  # static
    local_bytes: int  # per thread
    spill_bytes: int  # that its instructions store to local memory
    instructions: dict[str, int]


def short_name(demangled: str) -> str:
    """`write_kv_kernel<Half, Half, 8>` of what a demangler says: no return type, namespaces or
    parameters."""
    name = demangled.removeprefix("void ").replace("(anonymous namespace)::", "")
    name = re.sub(r"\b(_GLOBAL__N_\w+|treeattn|cuda)::", "", name)
    name = name.replace("(bool)1", "true").replace("(bool)0", "false").replace("> >", ">>")
    name = re.sub(r"\((?:int|unsigned int|long)\)", "", name)
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return name[:i]
    return name


_ARCH = re.compile(r"arch = sm_(\w+)")
_USED = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def parse_usage(lines: Iterable[str]) -> Iterator[tuple[str, str, tuple[int, int, int, int]]]:
    """(symbol, arch, (registers, stack, static shared, local)) of `cuobjdump -res-usage`."""
    arch = symbol = ""
    for line in lines:
        if found := _ARCH.search(line):
            arch = found[1]
        elif line.startswith(" Function "):
            symbol = line.split()[1].rstrip(":")
        elif (used := _USED.search(line)) and symbol:
            registers, stack, shared, local = map(int, used.groups())
            yield symbol, arch, (registers, stack, shared, local)
            symbol = ""


def parse_sass(lines: Iterable[str]) -> Iterator[tuple[str, str, Counter[str]]]:
    """(symbol, arch, counts) of `cuobjdump -sass`: by whole mnemonic."""
    arch = ""
    counts: Counter[str] | None = None
    symbol = ""
    for line in lines:
        if found := _INSTRUCTION.match(line):
            if counts is not None:
                counts[found[1]] += 1
        elif "Function : " in line or _ARCH.search(line):
            if counts is not None:
                yield symbol, arch, counts
                counts = None
            if found := _ARCH.search(line):
                arch = found[1]
            else:
                symbol, counts = line.split("Function : ")[1].strip(), Counter()
    if counts is not None:
        yield symbol, arch, counts


def classify(mnemonics: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Counts by INSTRUCTIONS and in all, and the bytes stored to local memory."""
    counts = dict.fromkeys(("all", *INSTRUCTIONS), 0)
    stored = 0
    for mnemonic, count in mnemonics.items():
        base, *modifiers = mnemonic.split(".")
        if base != "NOP":
            counts["all"] += count
        if base in counts:
            counts[base] += count
        if base == "LDG" and "128" in modifiers:
            counts["LDG.128"] += count
        if base == "STL":
            bits = next((int(m.lstrip("US")) for m in modifiers if m.lstrip("US").isdigit()), 32)
            stored += count * bits // 8
    return counts, stored


def find_cuobjdump() -> str | None:
    """From PATH, CUDA_HOME or the wheels."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    packages = Path(sysconfig.get_paths()["purelib"], "nvidia")
    folders = [Path(home, "bin") for home in homes] + sorted(packages.glob("*/bin"))
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    return shutil.which("cuobjdump", path=path)


def _output(command: list[str]) -> Iterator[str]:
    """Lines of what a command says, as it says them: disassembly is large."""
    path = os.path.dirname(command[0]) + os.pathsep + os.environ.get("PATH", "")  # finds nvdisasm
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PATH": path}
    ) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode != 0:
        raise SystemExit(f"kernel_resources: {' '.join(command)} failed")


def demangle(symbols: list[str]) -> dict[str, str]:
    """Short names by symbol."""
    result = subprocess.run(
        ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True
    )
    return dict(zip(symbols, map(short_name, result.stdout.splitlines()), strict=True))


def read_code(library: Path, cuobjdump: str) -> dict[tuple[str, str], Code]:
    """Every kernel of an object or library, by (name, arch)."""
    mixes = {
        (symbol, arch): classify(counts)
        for symbol, arch, counts in parse_sass(_output([cuobjdump, "-sass", str(library)]))
    }
    used = list(parse_usage(_output([cuobjdump, "-res-usage", str(library)])))
    names = demangle(sorted({symbol for symbol, _, _ in used}))
    code = {}
    for symbol, arch, (registers, stack, shared, local) in used:
        counts, spilled = mixes[symbol, arch]
        code[names[symbol], arch] = Code(
            registers, static_shared_bytes(arch, shared), stack + local, spilled, counts
        )
    return code


def static_shared_bytes(arch: str, shown: int) -> int:
    """What a kernel declares: from sm_90 on, cuobjdump adds the system's part to it."""
    return shown - RESERVED_SHARED_BYTES if int(arch.rstrip("af")) >= 90 and shown else shown
