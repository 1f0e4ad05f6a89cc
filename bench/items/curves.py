# SPDX-License-Identifier: Apache-2.0
"""C1: cost against density. C2: against context. C3: against nodes. C4: the caller's order."""

from __future__ import annotations

import torch
import treeattn

from bench import floors, row, trees
from bench.check import Judge
from bench.items.attention_row import measure, params, plan_again
from bench.models import DTYPES, LLAMA3_8B, SMOLLM2
from bench.peers.attention import DENSE
from bench.problem import Case, Problem, build
from bench.row import Row
from bench.session import Job, Session
from bench.timing import Work, compare

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
NODES = (1, 4, 16, 64, 256)


def jobs() -> list[Job]:
    return [*_density(), *_context(), *_nodes(), *_orders()]


def _job(item: str, case: Case, quick: bool) -> Job:
    def run(session: Session) -> list[Row]:
        return [measure(session, item, case, peers=DENSE)]

    return Job(item, case.label, run, quick)


def _density() -> list[Job]:
    """The wide model where it takes milliseconds, the narrow one (7 times less work) elsewhere."""
    result = []
    for n in (256, 1024):
        for ctx in (0, 512, 8192):
            model = LLAMA3_8B if n == 256 and ctx < 8192 else SMOLLM2
            for dtype in DTYPES:
                for shape in trees.DENSITIES:
                    quick = n == 256 and ctx == 0 and (dtype == "fp32" or shape == "d8")
                    result.append(_job("C1", Case(model, ctx, f"{shape}-{n}", dtype), quick))
    return result


def _context() -> list[Job]:
    return [
        _job(
            "C2",
            Case(SMOLLM2, ctx, "eagle-64", dtype),
            dtype == "fp32" and ctx in (1024, 2048, 8192),
        )
        for dtype in DTYPES
        for ctx in CONTEXTS
    ]


def _nodes() -> list[Job]:
    return [
        _job(
            "C3",
            Case(SMOLLM2, 8192, trees.for_size(n), dtype),
            dtype == "fp32" and n in (1, 16, 64),
        )
        for dtype in DTYPES
        for n in NODES
    ]


def _orders() -> list[Job]:
    def job(tree: str, quick: bool) -> Job:
        case = Case(SMOLLM2, 512, tree, "fp32")
        return Job("C4", case.label, lambda session: [_order_row(session, case)], quick)

    return [job("eagle-60", False), job("dd-1024", True)]


def depth_first(parents: list[int]) -> list[int]:
    """The same tree with its nodes in depth-first order."""
    tree = treeattn.DraftTree(list(range(len(parents))), parents)
    return [int(parent) for parent in tree.dfs().parents]


def _order_row(session: Session, case: Case) -> Row:
    """Plan and attention on the caller's (score) order, beside the same on depth-first order.

    The ratio of the two, in `extra`, is what the caller's order costs; 1 is ideal.
    """
    threads = session.calibration.threads[-1]
    parents = trees.make(case.tree)
    problems = {"ours": build(case), "depth_first": build(case, depth_first(parents))}
    for problem in problems.values():
        k, v = problem.pools[0]
        out = treeattn.tree_attention(problem.q, k, v, problem.plan)
        assert isinstance(out, torch.Tensor)
        Judge(problem).check("tree_attention", out)
    works = {name: _planned(problem) for name, problem in problems.items()}
    times = compare(works, threads=threads, effort=session.budget.effort())
    floor = floors.attention(
        case.model, case.ctx, parents, case.dtype, session.calibration.rates(threads)
    )
    return row.make(
        "C4",
        f"{case.label}, plan included, {threads}T",
        times["ours"],
        floor,
        {},
        params=params(case, parents, threads, session.calibration.isa),
        floor_valid=session.calibration.steady(floor, case.dtype, threads),
        extra={
            "depth_first_us": times["depth_first"].median,
            "order_ratio": times["ours"].median / times["depth_first"].median,
        },
    )


def _planned(problem: Problem) -> Work:
    k, v = problem.pools[0]
    out = torch.empty_like(problem.q)

    def run() -> object:
        return treeattn.tree_attention(problem.q, k, v, plan_again(problem), out=out)

    return Work(run)
