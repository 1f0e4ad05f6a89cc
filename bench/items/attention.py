# SPDX-License-Identifier: Apache-2.0
"""A2, A3: nodes against context on two models. A5: block sizes. H1: the shapes of reference."""

from __future__ import annotations

from bench import trees
from bench.calibrate import Calibration
from bench.items.attention_row import measure
from bench.models import DTYPES, LLAMA3_8B, SMOLLM2, Model
from bench.peers.attention import DENSE, FLEX, SDPA
from bench.problem import Case
from bench.row import Row
from bench.session import Job, Session

NODES, CONTEXTS = (16, 64, 256, 1024), (1024, 8192)
BLOCK_SIZES = (1, 16, 64, 128)
# (model, ctx, n) of H1
SHAPES = tuple(
    (model, ctx, n)
    for model in (SMOLLM2, LLAMA3_8B)
    for ctx, n in ((512, 16), (512, 256), (2048, 64), (8192, 64))
)
COLD_FACTOR = 4  # the caches that a cold row rotates over exceed the last-level cache this often


def jobs(calibration: Calibration) -> list[Job]:
    result = [
        *_grid("A2", LLAMA3_8B, calibration),
        *_grid("A3", SMOLLM2, calibration),
        *_block_sizes(),
    ]
    result += _reference_shapes(calibration)
    return result


def _attention_job(
    item: str,
    case: Case,
    *,
    quick: bool = False,
    threads: int | None = None,
    peers: tuple[str, ...] = DENSE,
    isa: str | None = None,
) -> Job:
    def run(session: Session) -> list[Row]:
        names = [name for name in peers if name != FLEX or not session.quick]
        row = measure(session, item, case, threads=threads, peers=names, isa=isa)
        if FLEX in peers and session.quick:
            row.skipped[FLEX] = "compiles for seconds per shape: only without --quick"
        return [row]

    return Job(item, case.label, run, quick)


def cold_pools(case: Case, l3_bytes: int) -> int:
    """How many caches to rotate over so that each block has left the last-level cache."""
    keys = case.ctx + len(trees.make(case.tree))
    per_pool = 2 * keys * case.model.num_kv_heads * case.model.head_dim
    return 1 + COLD_FACTOR * l3_bytes // (per_pool * DTYPES[case.dtype].itemsize)


def _grid(item: str, model: Model, calibration: Calibration) -> list[Job]:
    result = []
    for n in NODES:
        for ctx in CONTEXTS:
            for dtype in DTYPES:
                case = Case(model, ctx, trees.for_size(n), dtype)
                if n == 16 and ctx == 8192:
                    pools = cold_pools(case, calibration.l3_bytes)
                    case = Case(model, ctx, case.tree, dtype, pools=pools)
                quick = (n == 16 and ctx == 8192 and model is LLAMA3_8B) or (
                    n == 64 and ctx == 1024
                )
                result.append(_attention_job(item, case, quick=quick))
    return result


def _block_sizes() -> list[Job]:
    return [
        _attention_job(
            "A5",
            Case(LLAMA3_8B, 2048, "eagle-64", dtype, block_size=size),
            quick=dtype == "fp32" and size in (1, 64),
            peers=("sdpa_packed",),
        )
        for dtype in DTYPES
        for size in BLOCK_SIZES
    ]


def _reference_shapes(calibration: Calibration) -> list[Job]:
    """Both thread counts and dtypes with peers, then the other instruction sets without."""
    result = []
    for model, ctx, n in SHAPES:
        for dtype in DTYPES:
            case = Case(model, ctx, trees.for_size(n), dtype)
            quick = (ctx, n) == (512, 256) and model is SMOLLM2
            quick |= (ctx, n) == (2048, 64) and dtype == "fp32" and model is LLAMA3_8B
            for threads in calibration.threads:
                flex = (FLEX,) if threads > 1 and n >= 64 else ()
                peers = (*DENSE, *flex) if not quick or threads > 1 else SDPA
                result.append(_attention_job("H1", case, quick=quick, threads=threads, peers=peers))
    for isa in sorted(calibration.fma, reverse=True):
        if isa == calibration.isa:
            continue
        for model, ctx, n in SHAPES:
            if ctx == 8192:
                continue  # nothing new, and slow without vectors
            for dtype in DTYPES:
                case = Case(model, ctx, trees.for_size(n), dtype)
                result.append(_attention_job("H1", case, peers=(), isa=isa))
    return result
