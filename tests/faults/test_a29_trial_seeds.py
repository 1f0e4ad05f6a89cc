# SPDX-License-Identifier: Apache-2.0
"""A29 for the rules that try children: a request's numbers are its own, and used once."""

from __future__ import annotations

import random

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, plan_of
from support.rules import CALLS, FOR_TREES, problem, shape
from treeattn.ops import accept_path
from treeattn.reference.randomness import BONUS, COIN, RESIDUAL, philox

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.parametrize("name", CALLS)
def test_batch_mates_do_not_matter(name: str) -> None:
    rng = random.Random(name)
    for _ in range(10):
        trees = [shape(rng, name, rng.randrange(1, 8)) for _ in range(5)]
        contexts = [rng.randrange(100) for _ in trees]
        x, plan = problem(rng, name, trees), plan_of(trees, contexts)
        seeds = torch.tensor([rng.randrange(2**60) for _ in trees])
        together = accept_path(**x, plan=plan, seeds=seeds, **CALLS[name])
        for b, tree in enumerate(trees):
            own = slice(*plan.node_indptr[b : b + 2].tolist())
            alone = accept_path(
                **{key: value[own] for key, value in x.items()}, seeds=seeds[b : b + 1],
                plan=plan_of([tree], contexts[b : b + 1], max_depth=plan.max_depth),
                **CALLS[name],
            )  # fmt: skip
            for field in INTEGER_FIELDS:
                assert torch.equal(getattr(together, field)[b], getattr(alone, field)[0])


@pytest.mark.parametrize("name", FOR_TREES)
def test_where_siblings_lie_does_not_matter(name: str) -> None:
    """The same star with a subtree before or behind the last child: coins go by trial."""
    rng = random.Random(name)
    near, far = [-1, 0, 0, 0, 1, 2], [-1, 0, 1, 0, 3, 0]
    order = [0, 1, 3, 5, 2, 4]  # node i of the first is order[i] of the second
    for seed in range(60):
        x = problem(rng, name, [near])
        moved = {key: value[torch.tensor(order).argsort()] for key, value in x.items()}
        one, other = (
            accept_path(**given, plan=plan_of([tree], [9]), seeds=seed, **CALLS[name])
            for given, tree in ((x, near), (moved, far))
        )
        assert torch.equal(one.emitted, other.emitted)


@pytest.mark.parametrize("name", CALLS)
def test_seeds_differ_and_repeat(name: str) -> None:
    count = 64
    trees = [[-1, 0]] * count
    x = problem(random.Random(name), name, [[-1, 0]])
    x = {key: value.repeat(count, *[1] * (value.dim() - 1)) for key, value in x.items()}
    x["logits"] *= 0.1
    plan = plan_of(trees)
    emitted = accept_path(**x, plan=plan, seeds=torch.arange(count), **CALLS[name]).emitted
    again = accept_path(**x, plan=plan, seeds=torch.arange(count), **CALLS[name]).emitted
    assert torch.equal(emitted, again)
    assert len(emitted.unique(dim=0)) > 4
    high = accept_path(**x, plan=plan, seeds=torch.arange(count) << 32, **CALLS[name]).emitted
    assert not torch.equal(emitted, high)
    same = accept_path(**x, plan=plan, seeds=5, **CALLS[name]).emitted
    assert len(same.unique(dim=0)) == 1


def test_the_ops_own_coins_and_draws() -> None:
    """Flat laws turn each number into an outcome: the coin's bits, then the draw's."""
    vocab_size, count = 2**16, 24
    logits = torch.zeros(2, vocab_size)
    seeds, context = range(count), 1000
    for seed in seeds:
        coin = philox(seed, context, 0, COIN) * 2.0**-32
        for chance, accepted in ((coin + 2**-20, 1), (coin - 2**-20, 0)):
            if not 0 < chance < 1:
                continue
            draft = torch.zeros(2, vocab_size)
            draft[:, 7] = 1 / vocab_size / chance  # the ratio is the chance
            draft[:, 9] = 1 - draft[0, 7]
            got = accept_path(
                logits, torch.tensor([0, 7]), plan_of([[-1, 0]], [context]), rule="multistep",
                draft_probs=draft, seeds=seed,
            )  # fmt: skip
            assert got.num_accepted.tolist() == [accepted]
            if accepted:
                number = philox(seed, context + 1, 0, BONUS)
                assert got.next_tokens.tolist() == [number >> 16]
        # Nothing but the drafted id is taken away: the residual is flat but for it.
        draft = torch.zeros(2, vocab_size)
        draft[:, 0] = 1.0
        got = accept_path(
            logits, torch.tensor([0, 0]), plan_of([[-1, 0]], [context]), rule="swor",
            draft_probs=draft, seeds=seed,
        )  # fmt: skip
        number = philox(seed, context, 0, RESIDUAL) * 2.0**-32
        assert abs(int(got.next_tokens) - (1 + number * (vocab_size - 1))) < 1.01
