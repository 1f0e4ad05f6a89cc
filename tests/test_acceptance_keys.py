# SPDX-License-Identifier: Apache-2.0
"""A rule's outcome hangs on its own request and on the contract's keys, and on nothing else."""

from __future__ import annotations

import random

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, plan_of
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
from treeattn import reference
from treeattn.reference.randomness import BONUS, COIN, DRAW, RESIDUAL, philox


@pytest.mark.parametrize("name", CALLS)
def test_batch_mates_do_not_matter(name: str) -> None:
    rng = random.Random(name)
    for _ in range(15):
        trees = [shape(rng, name, rng.randrange(7)) for _ in range(4)]
        contexts = [rng.randrange(100) for _ in trees]
        x = problem(rng, name, trees)
        seeds = torch.tensor([rng.randrange(2**50) for _ in trees])
        plan = plan_of(trees, contexts)
        heat = torch.tensor([rng.choice([0.5, 1.0, 0.0]) for _ in trees])
        together = run(name, **x, plan=plan, seeds=seeds, temperature=heat)
        for b, tree in enumerate(trees):
            own = slice(int(plan.node_indptr[b]), int(plan.node_indptr[b + 1]))
            alone = run(
                name, **{key: value[own] for key, value in x.items()}, seeds=seeds[b : b + 1],
                plan=plan_of([tree], contexts[b : b + 1], max_depth=plan.max_depth),
                temperature=heat[b : b + 1],
            )  # fmt: skip
            for field in INTEGER_FIELDS:
                assert torch.equal(getattr(alone, field)[0], getattr(together, field)[b])


@pytest.mark.parametrize("name", [*FOR_TREES, "typical"])
def test_node_order_does_not_matter(name: str) -> None:
    """Any topological order that keeps siblings in theirs emits the same tokens."""
    rng = random.Random(name)
    for _ in range(40):
        parents = shape(rng, name, 8)
        x = problem(rng, name, [parents])
        if name == "typical":  # ties between equal paths go by node
            x["tokens"] = torch.tensor(distinct_siblings(parents, x["tokens"].tolist()))
        order = _another_order(rng, parents)
        new_id = {node: i for i, node in enumerate(order)}
        moved = [-1 if parents[n] < 0 else new_id[parents[n]] for n in order]
        options = {"seeds": rng.randrange(2**40), "temperature": 0.9}
        want = run(name, **x, plan=plan_of([parents], [17]), **options)
        permuted = {key: value[order] for key, value in x.items()}
        got = run(name, **permuted, plan=plan_of([moved], [17]), **options)
        assert torch.equal(got.emitted, want.emitted)
        assert [order[i] for i in got.path[0].tolist() if i >= 0] == [
            i for i in want.path[0].tolist() if i >= 0
        ]


def _another_order(rng: random.Random, parents: list[int]) -> list[int]:
    """At random: a node may follow once its parent and its elder siblings are there."""
    order, left = [0], list(range(1, len(parents)))
    while left:
        free = {p: n for n in reversed(left) if (p := parents[n]) in order}  # the eldest of each
        order.append(rng.choice(list(free.values())))
        left.remove(order[-1])
    return order


@pytest.mark.parametrize("vocab_size", [2, VOCAB])
def test_block_equals_traversal_on_chains(vocab_size: int) -> None:
    """The same nodes with the same coins."""
    generator = torch.Generator().manual_seed(vocab_size)
    lengths = set()
    for _ in range(200):
        parents = list(range(-1, 4))
        logits = torch.randn(5, vocab_size, generator=generator)
        tokens = torch.randint(0, vocab_size, (5,), generator=generator)
        draft = torch.rand(5, vocab_size, generator=generator).softmax(1)
        options = {"draft_probs": draft, "uniforms": torch.rand(5, 2, generator=generator)}
        block, leaves = (
            run(name, logits, tokens, plan_of([parents]), **options)
            for name in ("block", "traversal_iid")
        )
        assert_equal(block, leaves)
        lengths.add(int(block.num_accepted[0]))
    assert lengths == {0, 1, 2, 3, 4}


def uniform_of(seed: int, position: int, ordinal: int, purpose: int) -> float:
    return philox(seed, position, ordinal, purpose) * 2.0**-32


@pytest.mark.parametrize("name", [*WITH_DRAFTS, "target", "typical"])
def test_keys_of_the_random_numbers(name: str) -> None:
    """A seeded step equals one whose uniforms are looked up by the contract's keys."""
    rng = random.Random(name)
    chain = [-1, 0, 1, 2]
    purposes: set[int] = set()
    for _ in range(80):
        seed, context = rng.randrange(-(2**60), 2**60), rng.randrange(1000)
        x = problem(rng, name, [chain])
        call = CALLS.get(name, {"rule": name})
        if name == "target":
            del x["draft_probs"]
        seeded = reference.accept_path(**x, plan=plan_of([chain], [context]), **call, seeds=seed)
        # Node-wise rules meet node i at trial i - 1, traversal the leaf first; the draw at a node
        # is a residual's unless no trial was made there.
        last = int(seeded.num_accepted[0])
        ordinals = [0, 2, 1, 0] if name.startswith("traversal") else [0, 0, 1, 2]
        purpose = BONUS if last == 3 or name == "typical" else RESIDUAL
        purpose = DRAW if name == "target" else purpose
        purposes.add(purpose)
        uniforms = torch.tensor(
            [
                [
                    uniform_of(seed, context, ordinals[i], COIN),
                    uniform_of(seed, context + i, 0, purpose),
                ]
                for i in range(4)
            ],
            dtype=torch.float64,
        )
        given = reference.accept_path(
            **x, plan=plan_of([chain], [context]), **call, uniforms=uniforms
        )
        assert_equal(given, seeded, name)
    assert purposes == {"target": {DRAW}, "typical": {BONUS}}.get(name, {BONUS, RESIDUAL})


def test_short_draft_rows_and_rows_of_other_drafters() -> None:
    """Vq < V is zeros; draft_rows names rows of the whole draft_probs."""
    rng = random.Random(2)
    for name in FOR_TREES:
        for _ in range(20):
            trees = [shape(rng, name, 4), shape(rng, name, 5)]
            x = problem(rng, name, trees)
            plan = plan_of(trees, [3, 4])
            x["draft_probs"][:, 4:] = 0
            want = run(name, **x, plan=plan, seeds=5)
            short = {**x, "draft_probs": x["draft_probs"][:, :4]}
            assert_equal(run(name, **short, plan=plan, seeds=5), want)
            order = torch.randperm(9)
            shuffled = {**x, "draft_probs": x["draft_probs"][order]}
            start = torch.tensor([0] * 4 + [4] * 5)
            rows = order.argsort()[(plan.parents + start).clamp(min=0)].int()
            assert_equal(run(name, **shuffled, draft_rows=rows, plan=plan, seeds=5), want)
