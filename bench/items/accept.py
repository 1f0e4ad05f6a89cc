# SPDX-License-Identifier: Apache-2.0
"""P1: greedy acceptance. P2: sampling. P3: cost against the accepted length."""

from __future__ import annotations

import treeattn

from bench import floors, row
from bench.acceptance import AcceptCase, AcceptProblem, Sampling, build
from bench.check import WrongResultError
from bench.models import DTYPES
from bench.peers import accept as peers_
from bench.row import Row
from bench.session import Job, Session
from bench.timing import Work, compare

SMOLLM2_VOCAB, LLAMA3_VOCAB = 49152, 128256
ALL_ROWS, LAZY = ("chain-64", 63), ("eagle-64", 4)  # (tree, accepted)
LENGTHS = (0, 1, 3, 7, 15)


def jobs() -> list[Job]:
    greedy = [
        AcceptCase(vocab, tree, accepted, dtype)
        for vocab in (SMOLLM2_VOCAB, LLAMA3_VOCAB)
        for tree, accepted in (ALL_ROWS, LAZY)
        for dtype in DTYPES
    ]
    greedy += [AcceptCase(SMOLLM2_VOCAB, "eagle-16", 4, dtype, batch=8) for dtype in DTYPES]
    filters = (Sampling("target"), Sampling("target", top_k=50), Sampling("target", top_p=0.9))
    sampled = [
        AcceptCase(SMOLLM2_VOCAB, *LAZY, dtype, sampling)
        for sampling in filters
        for dtype in DTYPES
    ]
    sampled.append(AcceptCase(SMOLLM2_VOCAB, *ALL_ROWS, "fp32", filters[-1]))
    lengths = [AcceptCase(SMOLLM2_VOCAB, "d16-64", length, "fp32") for length in LENGTHS]
    return [
        *(_job("P1", case, case.vocab == SMOLLM2_VOCAB and case.batch == 1) for case in greedy),
        *(_job("P2", case, case.sampling.top_p < 1 and case.tree == LAZY[0]) for case in sampled),
        *(_job("P3", case, case.accepted in (1, 7, 15)) for case in lengths),
    ]


def _job(item: str, case: AcceptCase, quick: bool) -> Job:
    return Job(item, case.label, lambda session: [measure(session, item, case)], quick)


def measure(session: Session, item: str, case: AcceptCase) -> Row:
    """Ours and the peers emit the known path, then are timed in turn."""
    calibration = session.calibration
    threads = calibration.threads[-1]
    problem = build(case)
    expected = [problem.emitted] * case.batch
    if ours_emitted(problem) != expected:
        raise WrongResultError(f"accept_path must emit {expected}, got {ours_emitted(problem)}")
    peers = peers_.make(problem)
    for name, peer in peers.items():
        if (emitted := peer()) != expected:
            raise WrongResultError(f"{name} must emit {expected}, got {emitted}")
    works = {"ours": Work(lambda: accept(problem))}
    works |= {name: Work(peer) for name, peer in peers.items()}
    times = compare(works, threads=threads, effort=session.budget.effort())
    row_bytes = case.vocab * DTYPES[case.dtype].itemsize
    floor = floors.traffic(
        float(case.batch * (case.accepted + 1) * row_bytes), calibration.rates(threads)
    )
    return row.make(
        item,
        f"{case.label}, {threads}T",
        times["ours"],
        floor,
        {name: times[name].median for name in peers},
        params={
            "vocab": case.vocab,
            "n": len(problem.parents),
            "batch": case.batch,
            "tree": case.tree,
            "accepted": case.accepted,
            "dtype": case.dtype,
            "rule": case.sampling.rule,
            "top_k": case.sampling.top_k,
            "top_p": case.sampling.top_p,
            "threads": threads,
            "isa": calibration.isa,
        },
        floor_valid=calibration.read[threads].steady,
        max_error=0.0,  # emitted the same tokens as the fp64 law
    )


def accept(problem: AcceptProblem) -> treeattn.AcceptedPath:
    sampling = problem.case.sampling
    if sampling.rule == "greedy":
        return treeattn.accept_path(problem.logits, problem.tokens, problem.plan)
    return treeattn.accept_path(
        problem.logits,
        problem.tokens,
        problem.plan,
        rule=sampling.rule,
        top_k=sampling.top_k or None,
        top_p=sampling.top_p if sampling.top_p < 1 else None,
        uniforms=problem.uniforms,
    )


def ours_emitted(problem: AcceptProblem) -> list[list[int]]:
    emitted = accept(problem).emitted.tolist()
    return [[token for token in request if token >= 0] for request in emitted]
