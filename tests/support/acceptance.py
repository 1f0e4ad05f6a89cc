# SPDX-License-Identifier: Apache-2.0
"""Acceptance problems: a batch of trees, and the target's logits at every node."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from treeattn.ops import AcceptedPath
from treeattn.plan import TreePlan, plan_tree
from treeattn.reference.laws import Filters, target_law

from support.trees import pack_parents, random_parents

INTEGER_FIELDS = ("path", "num_accepted", "next_tokens", "status", "emitted")
PADDING = 2**30


Movable = TypeVar("Movable")


def on(device: str, value: Movable) -> Movable:
    """The tensors in a plan, in options or by themselves, on a device."""
    moved: Any = value
    if isinstance(value, Tensor):
        moved = value.to(device)
    elif isinstance(value, TreePlan):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        moved = replace(
            value, **{k: v.to(device) for k, v in parts.items() if isinstance(v, Tensor)}
        )
    elif isinstance(value, dict):
        moved = {k: on(device, v) for k, v in value.items()}
    return moved


def plan_of(
    trees: list[list[int]],
    context_lens: list[int] | None = None,
    *,
    max_depth: int | None = None,
    capacity: int | None = None,
) -> TreePlan:
    """A plan whose slots nobody reads."""
    parents, node_indptr = pack_parents(trees, capacity=capacity)
    num_nodes = len(parents)
    return plan_tree(
        parents,
        node_indptr,
        torch.tensor(context_lens or [0] * len(trees), dtype=torch.int32),
        torch.zeros(len(trees), 1, dtype=torch.int32),
        block_size=1024,
        num_qo_heads=1,
        num_kv_heads=1,
        slot_mapping=torch.arange(10_000, 10_000 + num_nodes),
        max_depth=max_depth,
    )


def one_hot_logits(ids: list[int], vocab_size: int) -> Tensor:
    """[N, V]: row i gives all mass to ids[i]."""
    logits = torch.full((len(ids), vocab_size), -torch.inf)
    logits[torch.arange(len(ids)), ids] = 0.0
    return logits


def allowed_mask(rows: list[list[int] | None], vocab_size: int) -> Tensor:
    """[N, ceil(V / 32)] int32; None allows all. Bits past V are set: nobody may look at them."""
    words = -(-vocab_size // 32)
    mask = torch.zeros(len(rows), words * 32, dtype=torch.int64)
    for row, ids in zip(mask, rows, strict=True):
        row[range(vocab_size) if ids is None else ids] = 1
    mask[:, vocab_size:] = 1
    packed = (mask.reshape(len(rows), words, 32) << torch.arange(32)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).int()


def random_problem(
    rng: random.Random, generator: torch.Generator, vocab_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, TreePlan]:
    """(logits, tokens, plan): most paths go on, ties are common, tokens hold padding."""
    trees = [random_parents(rng, rng.randrange(0, 10)) for _ in range(rng.randrange(1, 5))]
    context_lens = [rng.randrange(0, 1000) for _ in trees]
    plan = plan_of(trees, context_lens, max_depth=rng.choice([None, 12]))
    num_nodes = plan.num_nodes
    logits = torch.randn(num_nodes, vocab_size, generator=generator)
    if rng.random() < 0.3:
        logits = logits.round()
    logits = (logits * rng.choice([0.1, 1.0, 5.0])).to(dtype)
    few = min(vocab_size, 4)
    logits[:, :few] += 3.0
    tokens = torch.randint(0, few, (num_nodes,), generator=generator)
    for i in range(num_nodes):
        if rng.random() < 0.1:
            tokens[i] = rng.choice([-1, vocab_size, PADDING])
        if rng.random() < 0.02:
            logits[i, rng.randrange(vocab_size)] = rng.choice([torch.nan, torch.inf])
        if rng.random() < 0.2:
            logits[i, rng.randrange(vocab_size)] = -torch.inf
        if rng.random() < 0.01:
            logits[i] = -torch.inf
    return logits, tokens.to(rng.choice([torch.int32, torch.int64])), plan


def random_sampling(
    rng: random.Random, generator: torch.Generator, plan: TreePlan, vocab_size: int
) -> dict[str, Any]:
    """Sampling parameters, each of them sometimes missing, sometimes off for a row."""
    num_requests = plan.num_requests

    def some(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor([rng.choice(values) for _ in range(num_requests)], dtype=dtype)

    top_k = [0, -1, 1, 2, 5, vocab_size // 2, vocab_size - 1, vocab_size, vocab_size + 7]
    candidates = {
        "temperature": some([0.0, 0.3, 0.7, 1.0, 1.7, 1e-6], torch.float32),
        "top_k": some(list(map(float, top_k)), torch.int32),
        "top_p": some([0.05, 0.3, 0.9, 0.99, 1.0, 2.0], torch.float32),
        "min_p": some([0.0, -1.0, 0.02, 0.3], torch.float32),
    }
    chosen: dict[str, Any] = {k: v for k, v in candidates.items() if rng.random() < 0.5}
    chosen["seeds"] = torch.randint(-(2**62), 2**62, (num_requests,), generator=generator)
    if rng.random() < 0.3:
        chosen["uniforms"] = torch.rand(plan.num_nodes, 2, generator=generator)
    return chosen


def random_filtered_law(seed: str, vocab_size: int) -> Callable[[tuple[int, ...]], Tensor]:
    """[V]: for each history random logits, mask and filters."""

    @cache
    def law(history: tuple[int, ...]) -> Tensor:
        rng = random.Random(f"{seed} {history}")
        row = torch.tensor([rng.gauss(0, 1) for _ in range(vocab_size)], dtype=torch.float64)
        mask = torch.ones(vocab_size, dtype=torch.bool)
        mask[rng.randrange(vocab_size)] = rng.random() < 0.5
        filters = Filters(
            temperature=rng.choice([0.5, 1.0, 1.7]),
            top_k=rng.choice([0, 3]),
            top_p=rng.choice([0.7, 1.0]),
            min_p=rng.choice([0.0, 0.1]),
        )
        return target_law(row, mask, filters)

    return law


def random_allowed(rng: random.Random, num_nodes: int, vocab_size: int) -> Tensor:
    rows: list[list[int] | None] = []
    for _ in range(num_nodes):
        count = rng.choice([0, 1, vocab_size // 2, vocab_size - 1])
        rows.append(rng.choice([None, sorted(rng.sample(range(vocab_size), count))]))
    return allowed_mask(rows, vocab_size)


def assert_same(got: AcceptedPath, want: Any, where: object = "") -> None:
    """Integers equal, log probabilities close."""
    for name in INTEGER_FIELDS:
        a, b = getattr(got, name).cpu(), getattr(want, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), f"{where} {name}: {a.tolist()} != {b.tolist()}"
    if want.logprobs is None:
        assert got.logprobs is None
        return
    assert got.logprobs is not None
    torch.testing.assert_close(
        got.logprobs.cpu(), want.logprobs, rtol=1e-5, atol=1e-5, equal_nan=True
    )
