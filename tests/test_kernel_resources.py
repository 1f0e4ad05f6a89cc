# SPDX-License-Identifier: Apache-2.0
"""tools/kernel_resources.py: what it reads of compiled kernels, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import build_options  # noqa: E402
import cubins  # noqa: E402
import kernel_resources  # noqa: E402
from cubins import Code  # noqa: E402
from kernel_resources import Launch, Row  # noqa: E402
from occupancy import SMS, ctas_per_sm  # noqa: E402

USAGE = """
arch = sm_80
Resource usage:
 Common:
  GLOBAL:0
 Function _Z1av:
  REG:62 STACK:16 SHARED:128 LOCAL:0 CONSTANT[2]:80 CONSTANT[0]:624 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z1bv:
  REG:255 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:616 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_90
 Function _Z1av:
  REG:40 STACK:0 SHARED:0 LOCAL:8 CONSTANT[0]:624 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

SASS = """
arch = sm_80
\tcode for sm_80
\t\tFunction : _Z1av
\t.headerflags\t@"EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00000a00 */
                                                                             /* 0x000fe400 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;          /* 0x00000a00 */
        /*0020*/               @P1 LDG.E.U16 R8, [R2.64] ;                   /* 0x00000a00 */
        /*0030*/             @!UP0 STL.64 [R1], R8 ;                         /* 0x00000a00 */
        /*0040*/                   STL [R1+0x8], R8 ;                        /* 0x00000a00 */
        /*0050*/                   HMMA.16816.F32.BF16 R8, R8, R4, R8 ;      /* 0x00000a00 */
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;             /* 0x00000a00 */
        /*0070*/                   NOP ;                                     /* 0x00000a00 */
\t\tFunction : _Z1bv
        /*0000*/                   EXIT ;                                    /* 0x00000a00 */
arch = sm_90
\t\tFunction : _Z1av
        /*0000*/                   MUFU.EX2 R1, R1 ;                         /* 0x00000a00 */
"""


def test_usage_is_read_per_kernel_and_arch() -> None:
    assert list(cubins.parse_usage(USAGE.splitlines())) == [
        ("_Z1av", "80", (62, 16, 128, 0)),
        ("_Z1bv", "80", (255, 0, 0, 0)),
        ("_Z1av", "90", (40, 0, 0, 8)),
    ]


def test_instructions_are_counted_per_kernel_and_arch() -> None:
    read = {(s, a): cubins.classify(c) for s, a, c in cubins.parse_sass(SASS.splitlines())}
    assert set(read) == {("_Z1av", "80"), ("_Z1bv", "80"), ("_Z1av", "90")}
    counts, stored = read["_Z1av", "80"]
    assert {name: count for name, count in counts.items() if count} == {
        "all": 7,
        "LDG": 2,
        "LDG.128": 1,
        "STL": 2,
        "HMMA": 1,
        "BAR": 1,
    }
    assert stored == 8 + 4
    assert read["_Z1av", "90"][0]["MUFU"] == 1


@pytest.mark.parametrize(
    ("mnemonic", "num_bytes"), [("STL", 4), ("STL.64", 8), ("STL.128", 16), ("STL.U8", 1)]
)
def test_stores_to_local_memory_have_their_width(mnemonic: str, num_bytes: int) -> None:
    assert cubins.classify({mnemonic: 3})[1] == 3 * num_bytes


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        (
            "void treeattn::cuda::(anonymous namespace)::write_kv_kernel<treeattn::cuda::Half, "
            "treeattn::cuda::Float8E4M3, 8>(treeattn::WriteKvParams)",
            "write_kv_kernel<Half, Float8E4M3, 8>",
        ),
        (
            "void treeattn::cuda::_GLOBAL__N__0d8ee9d1_11_write_kv_cu_fcea2a67::write_kv_kernel"
            "<treeattn::cuda::Half, (int)8>(treeattn::WriteKvParams)",
            "write_kv_kernel<Half, 8>",
        ),
        (
            "treeattn::cuda::plan_tree_kernel(treeattn::PlanTreeParams, treeattn::cuda::PlanWork)",
            "plan_tree_kernel",
        ),
        ("void treeattn::cuda::walk<treeattn::cuda::Half, (bool)1>(int)", "walk<Half, true>"),
        (
            "void treeattn::cuda::k<treeattn::cuda::Traits<treeattn::cuda::Half, 64> >(int)",
            "k<Traits<Half, 64>>",
        ),
    ],
)
def test_names_are_short(demangled: str, short: str) -> None:
    assert cubins.short_name(demangled) == short


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "ctas"),
    [
        ("80", 128, 32, 0, 16),  # 2048 threads
        ("80", 32, 16, 0, 32),  # CTAs
        ("80", 128, 168, 0, 3),  # 5376 registers a warp: 3 in each partition
        ("80", 128, 255, 0, 2),
        ("80", 512, 64, 0, 2),
        ("80", 512, 65, 0, 1),  # a granule more: 7 warps a partition
        ("80", 96, 255, 0, 2),  # 8 warps, 3 at a time
        ("80", 128, 32, 163 * 1024, 1),
        ("80", 128, 32, 81 * 1024, 2),  # 82 KB each with the system's part
        ("80", 128, 32, 81 * 1024 + 1, 1),
        ("90", 128, 32, 81 * 1024 + 1, 2),
        ("90", 128, 32, 227 * 1024, 1),
        ("80", 128, 32, 163 * 1024 + 1, 0),
        ("89", 128, 32, 0, 12),  # 1536 threads
        ("120", 1024, 32, 0, 1),
    ],
)
def test_occupancy(arch: str, threads: int, registers: int, shared_bytes: int, ctas: int) -> None:
    assert ctas_per_sm(SMS[arch], threads, registers, shared_bytes) == ctas


COUNTS = dict.fromkeys(("all", *cubins.INSTRUCTIONS), 0)
GOOD = Row("k<Half>", "sm_80", 128, 64, 0, 0, 0, 8, COUNTS)


def test_rows_join_code_and_launches() -> None:
    code = {("k<Half>", "80"): Code(64, 100, 0, 0, COUNTS)}
    (row,) = kernel_resources.make_rows(code, {"k<Half>": Launch(128, 1000)}, ["80"])
    assert (row.shared_bytes, row.threads, row.ctas_per_sm) == (1100, 128, 8)
    with pytest.raises(SystemExit, match=re.escape("launches no k<Half>")):
        kernel_resources.make_rows(code, {}, ["80"])
    with pytest.raises(SystemExit, match="no code for sm_90"):
        kernel_resources.make_rows(code, {"k<Half>": Launch(128, 0)}, ["90"])


def test_spills_local_memory_low_occupancy_and_large_ctas_are_refused_by_name() -> None:
    assert kernel_resources.complaints([GOOD]) == []
    (spill,) = kernel_resources.complaints([replace(GOOD, spill_bytes=24, local_bytes=32)])
    assert spill.startswith("k<Half> on sm_80: 32 bytes of local memory per thread, 24 bytes")
    (local,) = kernel_resources.complaints([replace(GOOD, local_bytes=8)])
    assert "8 bytes of local memory" in local
    name = "tree_attention_kernel<AttentionTraits<Half, Half, 128, PlainScores>>"
    few = replace(GOOD, kernel=name, ctas_per_sm=1)
    assert kernel_resources.complaints([few]) == [
        f"{name} on sm_80: 1 CTAs per SM, must be 2 or more"
    ]
    assert kernel_resources.complaints([replace(few, ctas_per_sm=2)]) == []
    large = replace(few, ctas_per_sm=2, shared_bytes=81921)
    assert kernel_resources.complaints([large]) == [
        f"{name} on sm_80: 81921 shared bytes, must be 81920 or fewer"
    ]
    wide = replace(few, kernel=name.replace("128", "256"))
    assert kernel_resources.complaints([wide]) == []
    assert kernel_resources.complaints([replace(wide, ctas_per_sm=0, shared_bytes=103_296)]) == [
        f"{wide.kernel} on sm_80: a CTA of 103296 shared bytes does not fit an SM"
    ]


@pytest.mark.parametrize(("head_dim", "ctas"), [(64, 2), (128, 1)])
def test_an_sm_with_less_shared_memory_owes_fewer_ctas(head_dim: int, ctas: int) -> None:
    name = f"tree_attention_kernel<AttentionTraits<Half, Half, {head_dim}, PlainScores>>"
    row = replace(GOOD, kernel=name, arch="sm_89", ctas_per_sm=ctas)
    assert kernel_resources.complaints([row]) == []
    assert kernel_resources.complaints([replace(row, ctas_per_sm=ctas - 1)]) != []
    assert kernel_resources.complaints([replace(row, arch="sm_90")]) != []


def test_the_page_is_compared_unless_another_compiler_made_it() -> None:
    page = kernel_resources.markdown([GOOD], "nvcc 1")
    assert "| `k<Half>` | 128 | 64 | 0 | 0 | 0 | 8 |" in page
    assert kernel_resources.compare(page, page) == []
    more = kernel_resources.markdown([replace(GOOD, registers=65)], "nvcc 1")
    assert any("| 65 |" in line for line in kernel_resources.compare(page, more))
    assert kernel_resources.compare("", page) != []
    other = kernel_resources.markdown([replace(GOOD, registers=65)], "nvcc 2")
    assert kernel_resources.compare(page, other) == []


def test_the_log_of_launches_keeps_the_largest(tmp_path: Path) -> None:
    source, module = tmp_path / "k.cpp", tmp_path / "k.so"
    source.write_text("namespace { template <int n> void k(int) {} } void* kernel() { return "
                      "reinterpret_cast<void*>(&k<3>); }")  # fmt: skip
    subprocess.run(["c++", "-shared", "-fPIC", "-o", module, source], check=True)
    symbols = subprocess.run(["nm", "-C", module], capture_output=True, text=True, check=True)
    (line,) = [line for line in symbols.stdout.splitlines() if "k<3>" in line]
    offset = int(line.split()[0], 16)
    log = tmp_path / "log"
    log.write_text("".join(f"{module}\t{offset}\t{n}\n" for n in ("64\t10", "128\t8")))
    assert kernel_resources.read_launches(log) == {"k<3>": Launch(128, 10)}


SPILLING = """
__global__ __launch_bounds__(1024, 2) void greedy_kernel(float* x) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[(63 - i) * 1024 + threadIdx.x] = v[i] * v[(i + 7) % 64];
}
__global__ void plain_kernel(float4* x) { x[threadIdx.x + 1] = __ldg(x); }
__global__ void shared_kernel(float* x) {
  __shared__ float y[32];
  y[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = y[31 - threadIdx.x];
}
"""


@pytest.mark.parametrize("arch", ["80", "90"])
def test_compiled_kernels_are_read_as_ptxas_reports_them(arch: str, tmp_path: Path) -> None:
    nvcc, _ = build_options.find_nvcc(os.environ)
    cuobjdump = cubins.find_cuobjdump()
    if nvcc is None or cuobjdump is None:
        pytest.skip(f"no nvcc, or no cuobjdump: pip install {cubins.WHEELS}")
    source, compiled = tmp_path / "k.cu", tmp_path / "k.o"
    source.write_text(SPILLING)
    command = [nvcc, f"-arch=sm_{arch}", "-Xptxas=-v", "-c", "-o", compiled, source]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    greedy = said[said.index("greedy_kernel") :]
    numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", greedy)
    assert numbers is not None and int(numbers[2]) > 0, said
    code = {name: of for (name, _), of in cubins.read_code(compiled, cuobjdump).items()}
    assert set(code) == {"greedy_kernel", "plain_kernel", "shared_kernel"}
    spilling, plain = code["greedy_kernel"], code["plain_kernel"]
    assert (spilling.local_bytes, spilling.spill_bytes) == (int(numbers[1]), int(numbers[2]))
    assert spilling.registers == 32 and spilling.instructions["BAR"] == 1
    assert spilling.instructions["LDG"] == 64 and spilling.instructions["LDL"] > 0
    assert (plain.local_bytes, plain.spill_bytes, plain.instructions["STL"]) == (0, 0, 0)
    assert plain.instructions["LDG.128"] == plain.instructions["LDG"] == 1
    assert (plain.shared_bytes, code["shared_kernel"].shared_bytes) == (0, 128)
