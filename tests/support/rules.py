# SPDX-License-Identifier: Apache-2.0
"""Calls of the oracle's rules on random problems."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor
from treeattn import reference
from treeattn.plan import TreePlan
from treeattn.reference.accept_path import Accepted

from support.acceptance import INTEGER_FIELDS
from support.trees import random_parents

# How each rule is called; chains suit all of them.
CALLS: dict[str, dict[str, Any]] = {
    "multistep": {"rule": "multistep"},
    "swor": {"rule": "swor"},
    "block": {"rule": "block"},
    "traversal_iid": {"rule": "traversal", "draws": "iid"},
    "traversal_swor": {"rule": "traversal", "draws": "swor"},
    "typical": {"rule": "typical", "typical_epsilon": 0.05},
}
WITH_DRAFTS = [name for name in CALLS if name != "typical"]
FOR_TREES = [name for name in WITH_DRAFTS if name != "block"]
VOCAB = 6


def run(name: str, logits: Tensor, tokens: Tensor, plan: TreePlan, **options: Any) -> Accepted:
    return reference.accept_path(logits, tokens, plan, **CALLS[name], **options)


def problem(
    rng: random.Random, name: str, trees: list[list[int]], *, distinct: bool = True
) -> dict[str, Any]:
    """Random laws; tokens that most walks follow for a while."""
    count = sum(map(len, trees))
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    tokens: list[int] = []
    for tree in trees:
        own: list[int] = []
        for i, parent in enumerate(tree):
            taken = {own[j] for j in range(1, i) if tree[j] == parent} if distinct else set()
            own.append(rng.choice([t for t in range(VOCAB) if t not in taken] or [-1]))
        tokens += own
    found: dict[str, Any] = {
        "logits": torch.randn(count, VOCAB, generator=generator),
        "tokens": torch.tensor(tokens, dtype=torch.int64),
    }
    if name != "typical":
        found["draft_probs"] = torch.rand(count, VOCAB, generator=generator).softmax(1)
    return found


def shape(rng: random.Random, name: str, size: int) -> list[int]:
    return random_parents(rng, size, 0.0 if name == "block" else 0.6)


def assert_equal(got: Accepted, want: Accepted, where: object = "") -> None:
    for field in INTEGER_FIELDS:
        assert torch.equal(getattr(got, field), getattr(want, field)), (where, field)


def distinct_siblings(parents: list[int], tokens: list[int]) -> list[int]:
    """Siblings that repeat a token become padding."""
    seen: set[tuple[int, int]] = set()
    for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        tokens[i] = -1 if (parent, token) in seen else token
        seen.add((parent, token))
    return tokens
