# SPDX-License-Identifier: Apache-2.0
"""What the oracle's rules promise besides their law: coins, filters, rows, status, siblings."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.acceptance import allowed_mask, plan_of, random_problem
from support.rules import (
    CALLS,
    FOR_TREES,
    VOCAB,
    WITH_DRAFTS,
    assert_equal,
    distinct_siblings,
    problem,
    run,
    shape,
)
from torch import Tensor
from treeattn import reference

BELOW_ONE = 1 - 2**-24


@pytest.mark.parametrize("name", ["target", *CALLS])
def test_temperature_zero_is_greedy(name: str) -> None:
    """Without seeds, whatever the drafts hold; equal siblings are no error there."""
    rng, generator = random.Random(name), torch.Generator().manual_seed(1)
    for _ in range(40):
        logits, tokens, plan = random_problem(rng, generator, 7, torch.float32)
        if name == "block":
            trees = [shape(rng, name, rng.randrange(5)) for _ in range(3)]
            plan = plan_of(trees)
            logits = torch.randn(plan.num_nodes, 7, generator=generator)
            tokens = torch.randint(0, 7, (plan.num_nodes,), generator=generator)
        want = reference.accept_path(logits, tokens, plan)
        options: dict[str, Any] = {"temperature": 0.0, "top_k": 2, "top_p": 0.1, "min_p": 0.5}
        if name in WITH_DRAFTS:
            options["draft_probs"] = torch.full((plan.num_nodes, 7), torch.nan)
        call = CALLS.get(name, {"rule": name})
        assert_equal(reference.accept_path(logits, tokens, plan, **call, **options), want)


def test_temperature_zero_beside_a_sampling_row() -> None:
    rng = random.Random(0)
    for name in CALLS:
        x = problem(rng, name, [[-1, 0, 1]] * 2)
        heat = torch.tensor([0.0, 1.0])
        got = run(name, **x, plan=plan_of([[-1, 0, 1]] * 2), temperature=heat, seeds=3)
        greedy = reference.accept_path(x["logits"], x["tokens"], plan_of([[-1, 0, 1]] * 2))
        assert torch.equal(got.emitted[0], greedy.emitted[0])


@pytest.mark.parametrize("name", WITH_DRAFTS)
@pytest.mark.parametrize("padding", [-1, VOCAB, 2**31 - 1, 5], ids=["-1", "V", "int_max", "q=0"])
def test_a_node_that_cannot_be_drawn_changes_nothing(name: str, padding: int) -> None:
    """Padding among the siblings (or at a chain's end) with coin 0: same tokens as without."""
    rng = random.Random(f"{name} {padding}")
    accepted = 0
    for _ in range(60):
        parents = shape(rng, name, 5)
        x = problem(rng, name, [parents])
        x["draft_probs"][:, 5] = 0  # token 5 is never drawn
        clean = {**x, "tokens": x["tokens"].clamp(max=4)}
        if name in ("swor", "traversal_swor"):  # clamping may have made equals
            clean["tokens"] = torch.tensor(distinct_siblings(parents, clean["tokens"].tolist()))
        options: dict[str, Any] = {"seeds": rng.randrange(2**40)}
        if rng.random() < 0.5:
            coins = torch.zeros(5, 2) if rng.random() < 0.3 else torch.rand(5, 2)
            options = {"uniforms": coins}
        want = run(name, **clean, plan=plan_of([parents]), **options)
        accepted += int(want.num_accepted[0])
        at = 5 if name == "block" else rng.randrange(1, 6)
        parent = 4 if name == "block" else rng.randrange(at)
        wide = {key: _with_row(value, at) for key, value in {**clean, **options}.items()}
        wide["tokens"][at] = padding
        wide["logits"][at] = torch.nan
        if "uniforms" in wide:
            wide["uniforms"][at] = 0.0
        moved = [*parents[:at], parent, *parents[at:]]
        moved = [p + (p >= at and i > at) for i, p in enumerate(moved)]
        got = run(name, **wide, plan=plan_of([moved], max_depth=9))
        width = want.emitted.shape[1]
        assert torch.equal(got.emitted[:, :width], want.emitted)
        assert got.status.tolist() == [0]
    assert accepted > 10


def _with_row(value: Any, at: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.cat([value[:at], torch.zeros_like(value[:1]), value[at:]])


@pytest.mark.parametrize("name", WITH_DRAFTS)
@pytest.mark.parametrize(
    ("coin", "accepted"), [(0.0, 1), (0.25 - 2**-26, 1), (0.25, 0), (0.5, 0), (BELOW_ONE, 0)]
)
def test_the_coin_is_compared_strictly(name: str, coin: float, accepted: int) -> None:
    """Target [1/4, 1/4, 1/4, 1/4], the child surely drawn: strictly below 1/4 accepts it."""
    draft = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2)
    uniforms = torch.tensor([[0.0, 0.0], [coin, 0.0]])
    got = run(
        name, torch.zeros(2, 4), torch.tensor([3, 0]), plan_of([[-1, 0]]),
        draft_probs=draft, uniforms=uniforms,
    )  # fmt: skip
    assert got.num_accepted.tolist() == [accepted]
    assert got.emitted[0, 0] == (0 if accepted else 1)  # the residual has no token 0


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_extreme_coins(name: str) -> None:
    """A06: a token without target mass falls to no coin; one with p >= q passes every coin."""
    draft = torch.full((2, 4), 0.25)
    plan, tokens = plan_of([[-1, 0]]), torch.tensor([0, 2])
    for coin in (0.0, 2**-24, 0.5, BELOW_ONE):
        uniforms = torch.tensor([[0.0, 0.5], [coin, 0.5]])
        for top_p in (1.0, 0.5):
            logits = torch.full((2, 4), -torch.inf)
            logits[:, 1] = 0.0
            got = run(name, logits, tokens, plan, draft_probs=draft, uniforms=uniforms, top_p=top_p)
            assert got.emitted.tolist() == [[1, -1]]
            logits = torch.tensor([[0.0, 0.0, 2.0, 0.0]] * 2)
            got = run(name, logits, tokens, plan, draft_probs=draft, uniforms=uniforms, top_p=top_p)
            assert got.num_accepted.tolist() == [1]


def test_the_target_is_filtered_before_any_ratio() -> None:
    """p = [.4, .3, .2, .1] cut to two ids is [4/7, 3/7]; against q = 3/4 the coin turns at 4/7."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 2, dtype=torch.float64).log()
    draft = torch.tensor([[0.75, 0.25, 0.0, 0.0]] * 2)
    for name in WITH_DRAFTS:
        for coin, accepted in [(0.76, 1), (0.77, 0)]:  # (4/7) / (3/4) = 0.7619
            got = run(
                name, logits, torch.tensor([0, 0]), plan_of([[-1, 0]]), top_k=2, draft_probs=draft,
                uniforms=torch.tensor([[0.0, 0.9], [coin, 0.9]]),
            )  # fmt: skip
            assert got.num_accepted.tolist() == [accepted], (name, coin)


@pytest.mark.parametrize("name", CALLS)
def test_bad_rows_that_are_not_read_have_no_effect(name: str) -> None:
    """Rows below a child that the target cannot emit, and rows of leaves that are not accepted."""
    trees = [[-1, 0, 1]]
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = problem(random.Random(name), name, trees)
        x["tokens"] = torch.tensor([0, 3, 4])
        x["logits"][0, 3] = -torch.inf  # p = 0
        x["logits"][1:] = bad
        if "draft_probs" in x:
            x["draft_probs"][1:] = torch.nan
        got = run(name, **x, plan=plan_of(trees), uniforms=torch.zeros(3, 2))
        assert got.status.tolist() == [0]
        assert got.num_accepted.tolist() == [0]
        assert 0 <= int(got.next_tokens) < VOCAB
        x["tokens"][1] = 99
        got = run(name, **x, plan=plan_of(trees), uniforms=torch.zeros(3, 2))
        assert got.status.tolist() == [0]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("bad", "status"), [(torch.nan, 1), (torch.inf, 1), (-torch.inf, 2)], ids=["nan", "inf", "none"]
)
def test_bad_rows_on_the_walk(name: str, bad: float, status: int) -> None:
    trees = [[-1, 0, 1]]
    x = problem(random.Random(name), name, trees)
    x["tokens"] = torch.tensor([0, 3, 4])
    x["logits"][0, 3] = x["logits"][1, 4] = 40.0  # both drafts are accepted
    for row in (0, 1, 2):
        broken = {**x, "logits": x["logits"].clone()}
        broken["logits"][row] = bad
        got = run(name, **broken, plan=plan_of(trees), seeds=0, return_logprobs=True)
        stays = 0 if name in ("block", "traversal_iid", "traversal_swor") else row
        assert got.status.tolist() == [status]
        assert got.num_accepted.tolist() == [stays]
        assert got.next_tokens.tolist() == [-1]
        assert got.path[0].tolist() == [*range(stays + 1), *[-1] * (2 - stays)]
        assert got.emitted[0].tolist() == [3, 4][:stays] + [-1] * (3 - stays)
        assert got.logprobs is not None
        assert got.logprobs[0].isnan().tolist() == [i >= stays for i in range(3)]


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_a_nan_in_a_draft_row_that_is_read(name: str) -> None:
    x = problem(random.Random(0), name, [[-1, 0], [-1, 0]])
    x["draft_probs"][0, 5] = torch.nan
    x["draft_probs"][[1, 3]] = torch.nan  # leaves
    got = run(name, **x, plan=plan_of([[-1, 0], [-1, 0]]), seeds=0)
    assert got.status.tolist() == [1, 0]
    assert got.path[0].tolist() == [0, -1]


@pytest.mark.parametrize("name", CALLS)
def test_masked_ids_are_neither_accepted_nor_looked_at(name: str) -> None:
    """A26: the draft's favourite is not allowed; below it nothing is, which does not matter."""
    x = problem(random.Random(name), name, [[-1, 0, 1]])
    x["tokens"] = torch.tensor([0, 5, 1])
    x["logits"][0, 5] = torch.nan
    mask = allowed_mask([[2, 3], [], []], VOCAB)
    got = run(name, **x, plan=plan_of([[-1, 0, 1]]), allowed=mask, uniforms=torch.zeros(3, 2))
    assert got.status.tolist() == [0]
    assert got.emitted[0, 0] in (2, 3)
    assert got.num_accepted.tolist() == [0]


def test_block_takes_chains_only() -> None:
    x = problem(random.Random(0), "block", [[-1, 0], [-1, 0, 0]])
    message = r"rule block takes chains only, .*request 1 has parents\[2\] = 0"
    with pytest.raises(ValueError, match=message):
        run("block", **x, plan=plan_of([[-1, 0], [-1, 0, 0]]), seeds=0)


@pytest.mark.parametrize("name", FOR_TREES)
def test_siblings_with_one_token(name: str) -> None:
    """i.i.d. rules try each; without replacement one drafter has none, padding aside."""
    x = problem(random.Random(0), name, [[-1], [-1, 0, 0]])
    plan = plan_of([[-1], [-1, 0, 0]])
    x["tokens"] = torch.tensor([0, 0, 4, 4])
    if "swor" in name:
        message = r"siblings with distinct tokens; tokens\[3\] and its sibling tokens\[2\] .* 4"
        with pytest.raises(ValueError, match=message):
            run(name, **x, plan=plan, seeds=0)
    else:
        uniforms = torch.tensor([[0.0, 0.0], [0.0, 0.0], [BELOW_ONE, 0.0], [0.0, 0.0]])
        x["logits"] = torch.tensor([[0.0, 1.0, 2.0, 3.0, 3.0, 0.0]]).repeat(4, 1)
        x["draft_probs"] = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.6, 0.4]]).repeat(4, 1)
        x["logits"][1, 4] = 3.5
        got = run(name, **x, plan=plan, uniforms=uniforms)
        assert got.num_accepted.tolist() == [0, 0]  # the second has no residual mass left
        x["draft_probs"] = torch.tensor([[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]]).repeat(4, 1)
        x["logits"] = torch.zeros(4, VOCAB)
        uniforms[2, 0] = BELOW_ONE
        assert run(name, **x, plan=plan, uniforms=uniforms).path[1].tolist() == [0, 1]
    for harmless in (
        {"tokens": torch.tensor([0, 0, -1, -1])},
        {"draft_rows": torch.tensor([0, 0, 1, 2])},
    ):
        got = run(name, **{**x, **harmless}, plan=plan, seeds=0)
        assert got.status.tolist() == [0, 0]


def test_typical_prefers_the_longest_then_the_likeliest_path() -> None:
    flat = torch.zeros(6, VOCAB)
    trees = [[-1, 0, 0, 2, 2, 1]]
    tokens = torch.tensor([0, 1, 2, 3, 4, 5])
    options: dict[str, Any] = {"typical_epsilon": 0.1, "typical_delta": 9.0}
    got = reference.accept_path(flat, tokens, plan_of(trees), rule="typical", **options)
    assert got.path.tolist() == [[0, 2, 3]]  # all alike: the smaller node of the deepest
    assert got.next_tokens.tolist() == [0]  # argmax without seeds
    likelier = flat.clone()
    likelier[2, 4] = 0.3
    got = reference.accept_path(likelier, tokens, plan_of(trees), rule="typical", **options)
    assert got.path.tolist() == [[0, 2, 4]]
    hot = reference.accept_path(
        likelier, tokens, plan_of(trees), rule="typical", **options, top_k=1, seeds=0
    )
    assert hot.path.tolist() == [[0, 2, 4]]  # filters do not apply
    likelier[0, 2] = -9.0  # below the threshold
    got = reference.accept_path(likelier, tokens, plan_of(trees), rule="typical", **options)
    assert got.path.tolist() == [[0, 1, 5]]
