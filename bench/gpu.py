# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.gpu`: treeattn on a GPU beside the peers that are installed, and the programs of
bench/micro. docs/benchmarks.md explains the method."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import treeattn

from bench import cuda_problem, cuda_timing, floors, plots, report, row, trees
from bench.cpu import file_argument, folder_argument, items_argument
from bench.cuda_timing import Ceilings, Turns
from bench.models import LLAMA3_8B, SMOLLM2, Model
from bench.peers import cuda as peers_
from bench.problem import Case
from bench.row import Row

ITEMS = ("A1", "A2", "A3", "A5", "C1", "C2", "C3")
PROGRAMS = ("attention", "accept", "remap", "plan")
MICRO = Path("build/micro_cuda")
NO_GPU = 3  # exit status
TOLERANCE = 4e-2  # bf16 averages of standard normal numbers; peers round scores too
SAMPLED = 12  # nodes that are held against fp64
QWEN3 = Model("Qwen3-0.6B", 16, 8, 128, 28)


@dataclass(frozen=True)
class Job:
    item: str
    case: Case
    batch: int = 1
    quick: bool = False


def jobs() -> list[Job]:
    """The work items that have peers, all in bf16."""

    def case(tree: str, ctx: int, model: Model = LLAMA3_8B, block_size: int = 16) -> Case:
        return Case(model, ctx, tree, "bf16", block_size)

    result = [
        Job("A1", case("eagle-60", ctx), batch, ctx == 8192 and batch < 64)
        for batch, ctx in itertools.product((1, 8, 64), (1024, 8192, 32768))
    ]
    result += [
        Job("A2", case(trees.for_size(n), ctx), 1, n in (64, 1024))
        for n, ctx in itertools.product((16, 64, 256, 1024), (1024, 8192))
    ]
    result += [
        Job("A3", case("eagle-64", 8192, model), 1, model is QWEN3) for model in (QWEN3, SMOLLM2)
    ]
    result += [
        Job("A5", case("eagle-60", 8192, block_size=size), 8, size == 64) for size in (1, 16, 64)
    ]
    result += [
        Job("C1", case(f"{kind}-{n}", ctx), 8, n == 1024 and ctx == 0)
        for n, ctx in itertools.product((256, 1024), (0, 512, 8192))
        for kind in trees.DENSITIES
    ]
    result += [
        Job("C2", case("eagle-64", ctx), 1, ctx != 16384) for ctx in (8192, 16384, 32768, 131072)
    ]
    result += [
        Job("C3", case(trees.for_size(n), 8192), 1, n in (1, 16, 256))
        for n in (1, 4, 16, 64, 256, 1024)
    ]
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    if not torch.cuda.is_available():
        print("bench.gpu: needs a GPU: torch sees none", file=sys.stderr)
        return NO_GPU
    ceilings = cuda_timing.measure_ceilings()
    print(ceilings.text)
    rows: list[Row] = []
    wrong: list[str] = []
    for job in jobs():
        if job.item not in options.items or (options.quick and not job.quick):
            continue
        print(f"{job.item} B {job.batch}, {job.case.label}", file=sys.stderr, flush=True)
        try:
            rows.append(measure(job, ceilings))
        except (RuntimeError, ValueError) as error:
            wrong.append(f"{job.item} B {job.batch}, {job.case.label}: {error}")
        torch.cuda.empty_cache()
    micro, failed = run_programs(options.micro, options.items, quick=options.quick)
    wrong += failed
    if not any(row.peers for row in rows):
        print("bench.gpu: no peer could run; the rows say why")
    print(report.plain(report.HEADER, [report.cells(row) for row in rows]))
    if options.json:
        options.json.write_text(json.dumps(as_json(ceilings, rows, micro, wrong), indent=1) + "\n")
    if options.report:
        write_report(options.report, ceilings, rows, micro, wrong)
    for message in wrong:
        print(f"FAILED: {message}", file=sys.stderr)
    return 1 if wrong else 0


def measure(job: Job, ceilings: Ceilings, device: str = "cuda") -> Row:
    """Every candidate is held against fp64, then they are timed in turn as CUDA graphs."""
    case = job.case
    parents = trees.make(case.tree)
    rates = floors.Rates(1.0, 1e3 * ceilings.gemm_tflops, ceilings.copy_gbs)
    one = floors.attention(case.model, case.ctx, parents, case.dtype, rates)
    floor = floors.of(
        job.batch * one.flops, job.batch * one.bytes, rates.bf16_gflops, rates.read_gbs
    )
    pools = cuda_timing.cold_sets(floor.bytes, ceilings.l2_bytes)
    case = Case(case.model, case.ctx, case.tree, case.dtype, case.block_size, pools)
    x = cuda_problem.build(case, job.batch, device)
    out = torch.empty_like(x.q)

    def ours(pool: int) -> torch.Tensor:
        result = treeattn.tree_attention(x.q, *x.pools[pool], x.plan, out=out)
        assert isinstance(result, torch.Tensor)
        return result

    peers, skipped = peers_.make(x)
    error = check(x, ours)
    if not error <= TOLERANCE:
        raise RuntimeError(f"tree_attention differs from fp64 by {error:g}, more than {TOLERANCE}")
    for name, peer in list(peers.items()):
        reason = _wrong(x, peer)
        if reason:
            skipped[name] = reason
            del peers[name]
    candidates = {"ours": ours, **peers}
    times, failed = cuda_timing.compare(
        {name: Turns(run, len(x.pools)) for name, run in candidates.items()}
    )
    return row.make(
        job.item,
        f"B {job.batch}, {case.label}",
        times["ours"],
        floor,
        {name: times[name].median for name in peers if name in times},
        params={
            "model": case.model.label,
            "ctx": case.ctx,
            "n": len(parents),
            "batch": job.batch,
            "tree": case.tree,
            "density": trees.visible_pairs(parents) / len(parents) ** 2,
            "dtype": case.dtype,
            "block_size": case.block_size,
        },
        skipped=skipped | failed,
        max_error=error,
    )


def check(x: cuda_problem.Batch, run: Callable[[int], torch.Tensor]) -> float:
    """Largest difference from fp64 over some nodes of the first and the last request."""
    out = run(0).double()
    step = max(1, x.num_nodes // SAMPLED)
    nodes = sorted({*range(0, x.num_nodes, step), x.num_nodes - 1})
    errors = []
    for request in {0, x.num_requests - 1}:
        rows = out[request * x.num_nodes + torch.tensor(nodes)]
        errors.append((rows - x.expected(request, nodes)).abs().nan_to_num(nan=float("inf")).max())
    return float(max(errors))


def _wrong(x: cuda_problem.Batch, peer: peers_.Run) -> str | None:
    """Why a peer is left out: it fails, or its result is off."""
    try:
        error = check(x, peer)
    except Exception as failure:  # a library may raise anything
        return f"{type(failure).__name__}: {str(failure).strip()[:200]}"
    return None if error <= TOLERANCE else f"differs from fp64 by {error:g}"


def run_programs(
    folder: Path, items: Sequence[str], *, quick: bool
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """(rows of each program of bench/micro that is built, what failed)."""
    micro: dict[str, list[dict[str, Any]]] = {}
    failed: list[str] = []
    for op in PROGRAMS:
        program = folder / f"micro_{op}_cuda"
        if not program.is_file():
            print(f"bench.gpu: {program} is not built, left out", file=sys.stderr)
            continue
        json_file = folder / f"{op}.json"
        command = [str(program), "--json", str(json_file), *(["--quick"] if quick else [])]
        if op == "attention" and set(items) != set(ITEMS):  # it knows more than those with peers
            command += ["--items", ",".join(items)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            failed.append(f"{program.name}: exit status {done.returncode}: {done.stderr.strip()}")
            continue
        micro[op] = json.loads(json_file.read_text())
    return micro, failed


def as_json(
    ceilings: Ceilings,
    rows: Sequence[Row],
    micro: dict[str, list[dict[str, Any]]],
    failed: Sequence[str],
) -> dict[str, Any]:
    return {
        "ceilings": asdict(ceilings),
        "rows": [row.as_dict() for row in rows],
        "micro": micro,
        "failed": list(failed),
    }


def write_report(
    folder: Path,
    ceilings: Ceilings,
    rows: Sequence[Row],
    micro: dict[str, list[dict[str, Any]]],
    failed: Sequence[str],
) -> None:
    """report.md and the plots."""
    pictures, missing = plots.draw(folder, rows)
    parts = ["# GPU benchmarks", "", ceilings.text]
    for picture in pictures:
        parts += ["", f"![{picture.removesuffix('.png').replace('-', ' ')}]({picture})"]
    parts += ["", missing] if missing else []
    parts += ["", "## Beside the peers", ""]
    parts.append(report.table(report.HEADER, [report.cells(row) for row in rows]))
    for op, lines in micro.items():
        columns = list(lines[0])
        body = [[_cell(line[column]) for column in columns] for line in lines]
        parts += ["", f"## micro_{op}_cuda", "", report.table(columns, body)]
    reasons = sorted({f"{peer}: {why}" for row in rows for peer, why in row.skipped.items()})
    for title, lines_ in (("Peers that were left out", reasons), ("Failed", failed)):
        if lines_:
            parts += ["", f"## {title}", "", *(f"- {line}" for line in lines_)]
    (folder / "report.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _cell(value: object) -> str:
    return report.number(value) if isinstance(value, float) else str(value)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument(
        "--items",
        type=items_argument(ITEMS),
        default=list(ITEMS),
        help=f"comma-separated, of {','.join(ITEMS)} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="few cases of every item")
    parser.add_argument("--json", type=file_argument, metavar="FILE", help="ceilings and rows")
    parser.add_argument("--report", type=folder_argument, metavar="DIR", help="Markdown and plots")
    parser.add_argument(
        "--micro", type=Path, default=MICRO, metavar="DIR", help=f"the programs (default: {MICRO})"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
