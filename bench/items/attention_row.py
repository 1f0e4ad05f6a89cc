# SPDX-License-Identifier: Apache-2.0
"""Measures tree attention on one problem beside its peers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import treeattn
from torch import Tensor

from bench import floors, row, trees
from bench.calibrate import forced_isa
from bench.check import Judge, WrongResultError
from bench.peers import attention as peers_
from bench.problem import Case, Problem, build
from bench.row import Row
from bench.session import Session
from bench.timing import Work, compare

HOPELESS = 5.0  # times slower than the best peer: not worth the time on larger shapes


def params(case: Case, parents: Sequence[int], threads: int, isa: str) -> dict[str, Any]:
    """The description of a case that goals and plots filter by."""
    return {
        "model": case.model.label,
        "ctx": case.ctx,
        "n": len(parents),
        "tree": case.tree,
        "density": trees.visible_pairs(list(parents)) / len(parents) ** 2,
        "dtype": case.dtype,
        "block_size": case.block_size,
        "cold": case.pools > 1,
        "threads": threads,
        "isa": isa,
    }


def measure(
    session: Session,
    item: str,
    case: Case,
    *,
    threads: int | None = None,
    peers: Sequence[str] = peers_.DENSE,
    isa: str | None = None,
) -> Row:
    """Check every candidate against fp64, then time them in turn."""
    problem = build(case)
    judge = Judge(problem)
    calibration = session.calibration
    threads = threads or calibration.threads[-1]
    with forced_isa(isa):
        ours = _ours(problem)
        max_error = judge.check("tree_attention", ours())
        wanted, skipped = _still_worth_it(session, case.dtype, peers)
        candidates, unavailable = peers_.make(problem, wanted)
        skipped |= unavailable
        _drop_slow(session, case, judge, candidates, skipped)
        runs = {"ours": ours, "plan": lambda: plan_again(problem)}
        if candidates:
            runs["gather"] = _gather(problem)
        runs |= {name: peer.run for name, peer in candidates.items()}
        works = {name: Work(run, warm=case.pools == 1) for name, run in runs.items()}
        times = compare(works, threads=threads, effort=session.budget.effort())
    gather = times["gather"].median if candidates else None
    floor = floors.attention(
        case.model, case.ctx, problem.parents, case.dtype, calibration.rates(threads, isa)
    )
    return row.make(
        item,
        f"{case.label}, {threads}T" + (f", {isa}" if isa else ""),
        times["ours"],
        floor,
        {name: times[name].median + (gather or 0.0) for name in candidates},
        params=params(case, problem.parents, threads, isa or calibration.isa),
        floor_valid=calibration.steady(floor, case.dtype, threads, isa),
        gather_us=gather,
        skipped=skipped,
        max_error=max_error,
        extra={"plan_us": times["plan"].median},
    )


def _ours(problem: Problem) -> Callable[[], Tensor]:
    out = torch.empty_like(problem.q)
    turns = itertools.cycle(problem.pools)

    def run() -> Tensor:
        result = treeattn.tree_attention(problem.q, *next(turns), problem.plan, out=out)
        assert isinstance(result, Tensor)
        return result

    return run


def _gather(problem: Problem) -> Callable[[], object]:
    turns = itertools.cycle(range(len(problem.pools)))
    gather = peers_.Gather(problem)
    return lambda: gather(next(turns))


def plan_again(problem: Problem) -> treeattn.TreePlan:
    """Make the plan anew from the tensors of the present one."""
    plan = problem.plan
    return treeattn.plan_tree(
        plan.parents,
        plan.node_indptr,
        plan.context_lens,
        plan.block_table,
        block_size=plan.block_size,
        num_qo_heads=plan.num_qo_heads,
        num_kv_heads=plan.num_kv_heads,
        max_depth=plan.max_depth,
    )


def _still_worth_it(
    session: Session, dtype: str, names: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    skipped = {
        name: session.hopeless[name, dtype] for name in names if (name, dtype) in session.hopeless
    }
    return [name for name in names if name not in skipped], skipped


def _drop_slow(
    session: Session,
    case: Case,
    judge: Judge,
    candidates: dict[str, peers_.Peer],
    skipped: dict[str, str],
) -> None:
    """Check the peers; those far behind the best one leave, with their time as the reason."""
    seconds = {}
    for name, peer in list(candidates.items()):
        try:
            judge.check(name, peer.unpack(peer.run()))
        except WrongResultError as error:
            del candidates[name]
            skipped[name] = str(error)
            continue
        seconds[name] = _seconds(peer)
    best = min(seconds.values(), default=0.0)
    for name, taken in seconds.items():
        if taken > max(HOPELESS * best, 0.02):
            # Another process may have been in the way: a peer leaves for its own slowness only.
            taken = min(taken, *(_seconds(candidates[name]) for _ in range(2)))
        if taken > max(HOPELESS * best, 0.02):
            del candidates[name]
            skipped[name] = (
                f"{1e3 * taken:.0f} ms, {taken / best:.0f} times the best peer, on {case.label}"
            )
            session.hopeless[name, case.dtype] = skipped[name]


def _seconds(peer: peers_.Peer) -> float:
    start = time.perf_counter()
    peer.run()
    return time.perf_counter() - start
