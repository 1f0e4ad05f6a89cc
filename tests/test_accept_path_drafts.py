# SPDX-License-Identifier: Apache-2.0
"""The rules that try children, against the oracle: 10,000 random requests, and what each reads."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, on, plan_of
from support.drafted import random_call
from support.nearby import differences, is_nearby
from support.rules import CALLS, FOR_TREES, WITH_DRAFTS, problem, shape
from treeattn import reference
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    name: str
    vocab_size: int
    dtype: torch.dtype
    num_requests: int

    def __str__(self) -> str:
        return f"{self.name}_{self.vocab_size}_{str(self.dtype)[6:]}"


CASES = [
    *(
        Case(name, vocab_size, dtype, 145)
        for name in CALLS
        for vocab_size in (5, 33, 513, 1000)
        for dtype in (FP32, BF16, FP16)
    ),
    *(Case(name, 152_001, dtype, 5) for name in CALLS for dtype in (FP32, BF16)),
]
BATCH = 5
UNDECIDED = 0.005  # of the requests of a case, or one


def test_there_are_10000_requests() -> None:
    assert sum(case.num_requests for case in CASES) >= 10_000


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_oracle(
    case: Case, request: pytest.FixtureRequest, machine: str, device: str
) -> None:
    """The emulator is slow; its three orders see other requests."""
    variant = request.node.callspec.params["machine"]
    num_requests = case.num_requests if machine != "simt" else -(-case.num_requests // 10)
    check_against_oracle(case, "" if machine == "cpu" else variant, num_requests, device)


@pytest.mark.parametrize("name", CALLS)
def test_every_instruction_set(name: str, cpu_isa: str) -> None:
    for vocab_size in (45, 1700):
        for dtype in (FP32, BF16, FP16):
            check_against_oracle(Case(name, vocab_size, dtype, 20), cpu_isa, 20)


def check_against_oracle(case: Case, variant: str, num_requests: int, device: str = "cpu") -> None:
    rng = random.Random(f"{case}{variant}")
    undecided = 0
    for repeat in range(-(-num_requests // BATCH)):
        x = random_call(rng, case.name, case.vocab_size, case.dtype, BATCH)
        given = x.logits, x.tokens, x.plan
        options = x.options
        got = accept_path(*(on(device, value) for value in given), **on(device, options))
        want = reference.accept_path(*given, **options)
        for b in range(BATCH):
            if found := differences(got, want, b):
                assert is_nearby(got, b, *given, options), (repeat, b, found)
                undecided += 1
    assert undecided <= max(1, UNDECIDED * num_requests)


def called(name: str, x: dict[str, Any], device: str = "cpu", **options: Any) -> AcceptedPath:
    given = {key: on(device, value) for key, value in {**x, **options}.items()}
    return accept_path(**given, **CALLS[name])


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_draft_logits_are_the_law_that_softmax_makes_of_them(name: str) -> None:
    rng = random.Random(name)
    for _ in range(40):
        trees = [shape(rng, name, rng.randrange(8)) for _ in range(3)]
        x = {**problem(rng, name, trees), "plan": plan_of(trees)}
        logits = x.pop("draft_probs").log() * 1.5
        options = {"seeds": rng.randrange(2**40)}
        of_logits = called(name, x, draft_logits=logits + 3.0, **options)
        of_probs = called(name, x, draft_probs=logits.softmax(1), **options)
        for field in INTEGER_FIELDS:
            assert torch.equal(getattr(of_logits, field), getattr(of_probs, field))


@pytest.mark.parametrize("name", WITH_DRAFTS)
@pytest.mark.parametrize("given", ["draft_probs", "draft_logits"])
def test_a_reduced_draft_vocabulary(name: str, given: str) -> None:
    """Columns of some ids, in any order, are a law that has nothing at the others."""
    rng = random.Random(f"{name} {given}")
    accepted = 0
    for _ in range(40):
        trees = [shape(rng, name, rng.randrange(8)) for _ in range(3)]
        x = {**problem(rng, name, trees), "plan": plan_of(trees)}
        nothing = 0.0 if given == "draft_probs" else -torch.inf
        laws = x.pop("draft_probs")
        laws = laws if given == "draft_probs" else laws.log()
        ids = torch.tensor(rng.sample(range(6), 4))
        wide = torch.full_like(laws, nothing).index_copy(1, ids, laws[:, ids])
        options = {"seeds": rng.randrange(2**40)}
        want = called(name, x, **{given: wide}, **options)
        for dtype in (torch.int32, torch.int64):
            narrow = {given: laws[:, ids].contiguous(), "draft_ids": ids.to(dtype)}
            got = called(name, x, **narrow, **options)
            for field in INTEGER_FIELDS:
                assert torch.equal(getattr(got, field), getattr(want, field))
        accepted += int(want.num_accepted.sum())
    assert accepted > 20


def test_counts() -> None:
    """A chain accepted to its second node, beside a star of which the second child is taken."""
    trees = [[-1, 0, 1, 2], [-1, 0, 0, 0], [], [-1, 0]]
    plan = plan_of(trees)
    logits = torch.full((10, 9), -torch.inf)
    follows = {0: 1, 1: 2, 2: 7, 4: 6, 6: 8, 8: 3, 9: 3}
    logits[list(follows), list(follows.values())] = 0.0
    tokens = torch.tensor([0, 1, 2, 3, 0, 5, 6, 7, 0, 1])
    logits[8] = torch.nan  # status 1 is not counted
    counts = torch.zeros(2, 3, 2, dtype=torch.int64)
    for calls in (1, 2):
        for rule in ("greedy", "target"):
            accept_path(logits, tokens, plan, rule=rule, seeds=0, counts=counts)
        assert (counts[0] / 2 / calls).tolist() == [[2, 1], [1, 0], [1, 0]]
        assert (counts[1] / 2 / calls).tolist() == [[1, 1], [1, 0], [0, 0]]
    narrow = torch.zeros(2, 1, 1, dtype=torch.int64)
    accept_path(logits, tokens, plan, counts=narrow)
    assert narrow.tolist() == [[[2]], [[1]]]


def test_counts_of_a_wide_tree() -> None:
    """Ranks go on beyond what one look at the tree covers."""
    num_nodes, taken = 1400, 1200
    plan = plan_of([[-1, *[0] * (num_nodes - 1)]])
    logits = torch.full((num_nodes, num_nodes), -torch.inf)
    logits[:, taken] = 0.0
    counts = torch.zeros(2, 1, num_nodes + 5, dtype=torch.int64)
    accept_path(logits, torch.arange(num_nodes), plan, counts=counts)
    assert counts[0, 0].tolist() == [1] * (num_nodes - 1) + [0] * 6
    assert counts[1, 0].nonzero().tolist() == [[taken - 1]]


@pytest.mark.parametrize("name", [*CALLS, "target", "greedy"])
def test_counts_equal_the_oracles(name: str) -> None:
    rng = random.Random(name)
    got, want = torch.zeros(2, 2, 4, 3, dtype=torch.int64)
    for _ in range(30):
        trees = [shape(rng, name, rng.randrange(8)) for _ in range(3)]
        x = {**problem(rng, name, trees), "plan": plan_of(trees)}
        call = CALLS.get(name, {"rule": name})
        if call["rule"] in ("greedy", "target"):
            del x["draft_probs"]
        options = {**call, "seeds": rng.randrange(2**40)}
        accept_path(**x, **options, counts=got)
        reference.accept_path(**x, **options, counts=want)
    assert torch.equal(got, want)
    assert (got[1] <= got[0]).all()
    assert got[1].sum() > 3


@pytest.mark.parametrize("name", FOR_TREES)
def test_a_plan_that_was_cut_short_of_the_tree(name: str) -> None:
    """Deeper nodes have no influence, though they are in the batch."""
    rng = random.Random(name)
    for _ in range(20):
        parents = shape(rng, name, 9)
        plan = plan_of([parents])
        x = problem(rng, name, [parents])
        kept = [i for i in range(9) if int(plan.depths[i]) <= 1]
        x["logits"][plan.depths > 1] = torch.nan
        options = {"seeds": rng.randrange(2**40)}
        short = called(name, x, plan=replace(plan, max_depth=1), **options)
        cut = {key: value[kept] for key, value in x.items()}
        moved = [-1 if p < 0 else kept.index(p) for p in (parents[i] for i in kept)]
        want = called(name, cut, plan=plan_of([moved], max_depth=1), **options)
        for field in ("emitted", "status", "next_tokens", "num_accepted"):
            assert torch.equal(getattr(short, field), getattr(want, field))
