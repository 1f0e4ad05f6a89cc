# SPDX-License-Identifier: Apache-2.0
"""accept_path against the oracle, and what its rules promise."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from support.acceptance import (
    INTEGER_FIELDS,
    allowed_mask,
    assert_same,
    on,
    one_hot_logits,
    plan_of,
    random_allowed,
    random_problem,
    random_sampling,
)
from treeattn import reference
from treeattn.ops import accept_path


@dataclass(frozen=True)
class Case:
    name: str
    rule: str
    vocab_size: int
    dtype: torch.dtype
    repeats: int
    masked: bool = False

    def __str__(self) -> str:
        return self.name


MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
CASES = [
    *(
        Case(f"{rule}_{vocab}_{str(dtype)[6:]}", rule, vocab, dtype, 150)
        for rule in ("greedy", "target")
        for vocab in (5, 31, 1000)
        for dtype in (FP32, BF16, FP16)
    ),
    Case("greedy_one_id", "greedy", 1, FP32, 20),
    Case("target_one_id", "target", 1, FP32, 20),
    Case("greedy_masked", "greedy", 33, BF16, 60, masked=True),
    Case("target_masked", "target", 33, FP32, 60, masked=True),
    Case("target_masked_wide", "target", 1000, FP16, 60, masked=True),
    *(
        Case(f"{r}_49152_{str(t)[6:]}", r, 49152, t, 3)
        for r in ("greedy", "target")
        for t in (FP32, BF16)
    ),
]


def check_against_oracle(case: Case, machine: str = "cpu", device: str = "cpu") -> None:
    rng = random.Random(case.name + ("" if machine == "cpu" else machine))
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    # The emulator is slow; its three orders see other problems.
    for repeat in range(case.repeats if machine == "cpu" else -(-case.repeats // 10)):
        logits, tokens, plan = random_problem(rng, generator, case.vocab_size, case.dtype)
        options = {"rule": case.rule, "return_logprobs": rng.random() < 0.3}
        if case.rule == "target":
            options |= random_sampling(rng, generator, plan, case.vocab_size)
        if case.masked:
            options["allowed"] = random_allowed(rng, plan.num_nodes, case.vocab_size)
        got = accept_path(
            on(device, logits), on(device, tokens), on(device, plan), **on(device, options)
        )
        want = reference.accept_path(logits, tokens, plan, **options)
        assert_same(got, want, f"{case}[{repeat}]")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_accept_path(case: Case, request: pytest.FixtureRequest, device: str) -> None:
    check_against_oracle(case, request.node.callspec.params["machine"], device)


def test_every_instruction_set(cpu_isa: str) -> None:
    for rule in ("greedy", "target"):
        for dtype in (FP32, BF16, FP16):
            check_against_oracle(
                Case(f"{cpu_isa}_{rule}_{dtype}", rule, 45, dtype, 25, masked=True)
            )
            check_against_oracle(Case(f"{cpu_isa}_{rule}_{dtype}_w", rule, 1700, dtype, 10))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_one_id_is_allowed_wherever_a_row_begins(dtype: torch.dtype, device: str) -> None:
    """Rows of 33 ids begin at every place within 16 bytes."""
    ids = [(row * 5) % 33 for row in range(33)] + list(range(9))
    allowed = torch.zeros(len(ids), 2, dtype=torch.int32)
    for row, id in enumerate(ids):
        allowed[row, id // 32] = -(2**31) if id == 31 else 1 << id % 32
    logits, plan = torch.randn(len(ids), 33).to(dtype), plan_of([[-1]] * len(ids))
    for rule in ("greedy", "target"):
        got = accept_path(
            logits.to(device),
            torch.zeros(len(ids), dtype=torch.int32, device=device),
            on(device, plan),
            rule=rule,
            seeds=3,
            allowed=allowed.to(device),
        )
        assert got.next_tokens.tolist() == ids


@pytest.mark.parametrize("case", [(), (0, 0)], ids=["no_requests", "no_nodes"])
def test_empty(case: tuple[int, ...]) -> None:
    plan = plan_of([[] for _ in case])
    got = accept_path(torch.zeros(0, 7), torch.zeros(0, dtype=torch.int32), plan)
    assert got.path.tolist() == got.emitted.tolist() == [[-1] for _ in case]
    assert got.status.tolist() == [3 for _ in case]
    assert got.next_tokens.tolist() == [-1 for _ in case]


def test_capacity_rows_belong_to_nobody() -> None:
    plan = plan_of([[-1, 0], [], [-1]], max_depth=2, capacity=9)
    logits = torch.full((9, 6), torch.nan)
    logits[:3] = one_hot_logits([4, 2, 1], 6)
    tokens = torch.tensor([0, 4, 0, *[4] * 6])
    got = accept_path(logits, tokens, plan)
    assert got.path.tolist() == [[0, 1, -1], [-1, -1, -1], [0, -1, -1]]
    assert got.emitted.tolist() == [[4, 2, -1], [-1, -1, -1], [1, -1, -1]]
    assert got.status.tolist() == [0, 3, 0]


def test_rows_off_the_walk_have_no_influence() -> None:
    plan = plan_of([[-1, 0, 0, 1, 2]])
    tokens = torch.tensor([9, 3, 5, 6, 7])
    logits = torch.full((5, 40), torch.nan)
    logits[[0, 2, 4]] = one_hot_logits([5, 7, 1], 40)
    for rule in ("greedy", "target"):
        got = accept_path(logits, tokens, plan, rule=rule, seeds=1, return_logprobs=True)
        assert got.path.tolist() == [[0, 2, 4]]
        assert got.emitted.tolist() == [[5, 7, 1]]
        assert got.logprobs is not None
        assert got.logprobs.tolist() == [[0.0, 0.0, 0.0]]


def test_siblings_with_one_token_follow_the_smaller_index() -> None:
    plan = plan_of([[-1, 0, 0, 1, 2]])
    tokens = torch.tensor([0, 3, 3, 8, 9])
    logits = one_hot_logits([3, 9, 9, 1, 1], 10)
    for rule in ("greedy", "target"):
        assert accept_path(logits, tokens, plan, rule=rule, seeds=0).path.tolist() == [[0, 1, -1]]


def test_strided_inputs_equal_packed_ones() -> None:
    rng, generator = random.Random(1), torch.Generator().manual_seed(1)
    for _ in range(20):
        logits, tokens, plan = random_problem(rng, generator, 50, BF16)
        options = random_sampling(rng, generator, plan, 50)
        options["allowed"] = random_allowed(rng, plan.num_nodes, 50)
        options["temperature"] = torch.tensor([0.8]).expand(plan.num_requests)  # stride 0
        wide = torch.full((2 * plan.num_nodes, 70), torch.nan, dtype=BF16)
        rows = wide[::2, 3:53]
        rows.copy_(logits)
        mask = torch.full((2 * plan.num_nodes, 5), -1, dtype=torch.int32)[::2, 1:3]
        mask.copy_(options["allowed"])
        packed = accept_path(logits, tokens, plan, rule="target", **options)
        options["allowed"] = mask
        strided = accept_path(rows, tokens, plan, rule="target", **options)
        for name in INTEGER_FIELDS:
            assert torch.equal(getattr(packed, name), getattr(strided, name))


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 1), (0.2499999, 1), (0.25, 3), (0.5, 4), (0.7499999, 4), (0.75, 6), (0.99999994, 6)],
)
def test_a_draw_is_the_smallest_id_beyond_the_uniform(uniform: float, token: int) -> None:
    """Four ids of probability 1/4, exactly; ids between have none."""
    logits = torch.full((1, 8), -torch.inf)
    logits[0, [1, 3, 4, 6]] = 2.0
    uniforms = torch.tensor([[torch.nan, uniform]])
    got = accept_path(
        logits, torch.zeros(1).int(), plan_of([[-1]]), rule="target", uniforms=uniforms
    )
    assert got.next_tokens.tolist() == [token]


def kept_ids(logits: list[float], **filters: float) -> set[int]:
    """The ids that some draw returns."""
    plan = plan_of([[-1]] * 400)
    rows = torch.tensor([logits] * 400)
    uniforms = torch.stack([torch.zeros(400), torch.arange(400) / 400], 1)
    tokens = torch.zeros(400, dtype=torch.int32)
    got = accept_path(rows, tokens, plan, rule="target", uniforms=uniforms, **filters)
    return set(got.next_tokens.tolist())


LADDER = [float(x) for x in torch.tensor([0.1, 0.4, 0.2, 0.3]).log()]


@pytest.mark.parametrize(
    ("logits", "filters", "kept"),
    [
        (LADDER, {}, {0, 1, 2, 3}),
        (LADDER, {"top_k": 2}, {1, 3}),
        (LADDER, {"top_k": 4}, {0, 1, 2, 3}),
        (LADDER, {"top_k": -3}, {0, 1, 2, 3}),
        (LADDER, {"top_k": -(2**40)}, {0, 1, 2, 3}),
        (LADDER, {"top_k": 2**40}, {0, 1, 2, 3}),
        ([1.0, 2.0, 1.0, 1.0], {"top_k": 2}, {0, 1}),  # ties: lower ids stay
        (LADDER, {"top_p": 0.65}, {1, 3}),
        (LADDER, {"top_p": 0.75}, {1, 2, 3}),
        (LADDER, {"top_p": 1e-9}, {1}),  # at least one
        ([0.0] * 4, {"top_p": 0.5}, {0, 1}),  # mass >= top_p, then id
        (LADDER, {"min_p": 0.45}, {1, 2, 3}),
        (LADDER, {"min_p": 0.8}, {1}),
        ([0.0] * 4, {"min_p": 1.0}, {0, 1, 2, 3}),
        # Renormalised after top-k: 0.4 / 0.7 alone reaches 0.55.
        (LADDER, {"top_k": 2, "top_p": 0.55}, {1}),
        (LADDER, {"top_k": 3, "top_p": 0.7, "min_p": 0.8}, {1}),
    ],
)
def test_filters(logits: list[float], filters: dict[str, float], kept: set[int]) -> None:
    assert kept_ids(logits, **filters) == kept


def test_frequencies_follow_the_filtered_law(machine: str, device: str) -> None:
    """Chi-square over 40,000 seeded draws; 1,500 where every thread is emulated."""
    count, logits = (
        1_500 if machine == "simt" else 40_000,
        torch.tensor([0.3, 1.1, -0.4, 0.9, -2.0, 0.0]),
    )
    plan = plan_of([[-1]] * count)
    options = {"temperature": 0.7, "top_k": 5, "min_p": 0.05}
    got = accept_path(
        on(device, logits.expand(count, 6).contiguous()),
        on(device, torch.zeros(count, dtype=torch.int32)),
        on(device, plan),
        rule="target",
        seeds=on(device, torch.arange(count)),
        **options,
    )
    law = (logits.double() / 0.7).softmax(0)
    law[4] = 0.0
    law = torch.where(law >= 0.05 * law.max(), law, 0.0)
    expected = law / law.sum() * count
    observed = got.next_tokens.cpu().bincount(minlength=6).double()
    live = expected > 0
    assert observed[~live].sum() == 0
    chi_square = ((observed - expected)[live] ** 2 / expected[live]).sum()
    assert chi_square < 23.5  # p = 1e-4 for 4 degrees of freedom


def test_a_large_vocabulary_keeps_its_tail() -> None:
    """A flat row of 100,000 ids: the draw is the uniform's own place."""
    vocab_size = 100_000
    uniforms = torch.tensor([[0.0, u] for u in (0.0, 0.25, 0.5, 0.999)])
    plan = plan_of([[-1]] * 4)
    got = accept_path(
        torch.zeros(4, vocab_size), torch.zeros(4).int(), plan, rule="target", uniforms=uniforms
    )
    assert got.next_tokens.tolist() == [int(u * vocab_size) for u in uniforms[:, 1].tolist()]
    capped = accept_path(
        torch.zeros(4, vocab_size), torch.zeros(4).int(), plan, rule="target",
        uniforms=uniforms, top_k=50_000, top_p=0.5,
    )  # fmt: skip
    # A tie of 50,000 cut in half by top-p: the lower ids stay.
    assert capped.next_tokens.tolist() == [int(u * 25_000) for u in uniforms[:, 1].tolist()]


def test_extreme_temperatures() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 0.5]]).repeat(3, 1)
    plan = plan_of([[-1]] * 3)
    temperature = torch.tensor([1e-45, 1e38, torch.inf])
    uniforms = torch.tensor([[0.0, 0.99]] * 3)
    got = accept_path(
        logits,
        torch.zeros(3).int(),
        plan,
        rule="target",
        temperature=temperature,
        uniforms=uniforms,
    )
    assert got.next_tokens.tolist() == [1, 3, 3]
    assert got.status.tolist() == [0, 0, 0]


def test_mask_bits_past_the_vocabulary_mean_nothing() -> None:
    logits = torch.full((1, 33), -1.0)
    mask = allowed_mask([[32]], 33)
    assert mask.tolist() == [[0, -1]]
    for rule in ("greedy", "target"):
        got = accept_path(
            logits, torch.zeros(1).int(), plan_of([[-1]]), rule=rule, seeds=5, allowed=mask
        )
        assert got.next_tokens.tolist() == [32]
