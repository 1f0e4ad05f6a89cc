# SPDX-License-Identifier: Apache-2.0
"""A29: a seeded request emits the same tokens with any batch mates, batch row and tree."""

from __future__ import annotations

import random

import pytest
import torch
from support.acceptance import plan_of
from support.trees import random_parents
from torch import Tensor
from treeattn.ops import accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

VOCAB, STEPS = 60, 20


def target(history: list[int]) -> Tensor:
    """The model: logits that depend on the tokens so far."""
    generator = torch.Generator().manual_seed(hash(tuple(history)) % 2**31)
    return torch.randn(VOCAB, generator=generator)


def plain(prompt: list[int], seed: int, count: int) -> list[int]:
    history = list(prompt)
    while len(history) < len(prompt) + count:
        got = accept_path(
            target(history)[None],
            torch.tensor(history[-1:]),
            plan_of([[-1]], [len(history) - 1]),
            rule="target",
            temperature=0.8,
            top_k=20,
            seeds=seed,
        )
        history.append(int(got.next_tokens[0]))
    return history[len(prompt) :]


def with_trees(
    prompt: list[int], seed: int, count: int, rng: random.Random, batch: int, row: int
) -> list[int]:
    """The same request at `row` of a batch, under random trees that often guess right."""
    history = list(prompt)
    truth = prompt + plain(prompt, seed, count + 20)
    while len(history) < len(prompt) + count:
        trees = [random_parents(rng, rng.randrange(1, 10)) for _ in range(batch)]
        contexts = [rng.randrange(50) for _ in range(batch)]
        contexts[row] = len(history) - 1
        seeds = torch.tensor([rng.randrange(2**40) for _ in range(batch)])
        seeds[row] = seed
        plan = plan_of(trees, contexts)
        logits = torch.randn(plan.num_nodes, VOCAB)
        tokens = torch.randint(0, VOCAB, (plan.num_nodes,))
        start = int(plan.node_indptr[row])
        paths: list[list[int]] = []
        for i, parent in enumerate(trees[row]):
            at = len(history) + len(paths[parent]) if parent >= 0 else 0
            guess = truth[at] if rng.random() < 0.7 else rng.randrange(VOCAB)
            paths.append([*paths[parent], guess] if parent >= 0 else [])
            tokens[start + i] = guess if parent >= 0 else history[-1]
            logits[start + i] = target(history + paths[i])
        got = accept_path(
            logits, tokens, plan, rule="target", temperature=0.8, top_k=20, seeds=seeds
        )
        history += [token for token in got.emitted[row].tolist() if token >= 0]
    return history[len(prompt) : len(prompt) + count]


def test_alone_and_in_a_batch() -> None:
    rng = random.Random(0)
    want = plain([1, 2, 3], 42, STEPS)
    assert with_trees([1, 2, 3], 42, STEPS, rng, 1, 0) == want
    assert with_trees([1, 2, 3], 42, STEPS, rng, 8, 0) == want
    assert with_trees([1, 2, 3], 42, STEPS, rng, 8, 5) == want


def test_resumed_after_preemption() -> None:
    whole = plain([1, 2, 3], 42, STEPS)
    assert plain([1, 2, 3, *whole[:7]], 42, STEPS - 7) == whole[7:]


def test_seeds_differ() -> None:
    assert plain([1, 2, 3], 42, STEPS) == plain([1, 2, 3], 42, STEPS)
    assert plain([1, 2, 3], 42, STEPS) != plain([1, 2, 3], 43, STEPS)
    assert plain([1, 2, 3], 42, STEPS) != plain([1, 2, 3], 42 + 2**32, STEPS)


def test_known_numbers() -> None:
    """Philox4x32-10 with key and counter 0: the first word of the published test vector."""
    from treeattn.reference.randomness import philox

    assert philox(0, 0, 0, 0) == 0x6627E8D5
    # A row of 2^16 equal ids turns the uniform into the id: the op's own generator.
    got = accept_path(
        torch.zeros(1, 2**16), torch.zeros(1).int(), plan_of([[-1]]), rule="target", seeds=0
    )
    assert got.next_tokens.tolist() == [0x6627]
