# SPDX-License-Identifier: Apache-2.0
"""A million tokens of a toy language by draft, plan and acceptance: every rule keeps its law.

The target is a Markov chain over six tokens, the drafter another one. Given a token, the next one
must have the target's law whatever was drafted: chi-square over all pairs of neighbours.
"""

from __future__ import annotations

import pytest
import torch
import treeattn
from torch import Tensor

V = 6
NUM_TOKENS = 1_000_000
NUM_REQUESTS = 8192
# Of a tree: parents, and for each level the nodes with their rank among their siblings.
TREE = (-1, 0, 0, 0, 1, 1, 2, 4)
CHAIN = (-1, 0, 1, 2)


def laws(seed: int) -> Tensor:
    """[V, V] fp64, row: the law after a token; one token in eight cannot follow."""
    generator = torch.Generator().manual_seed(seed)
    law = torch.rand(V, V, generator=generator, dtype=torch.float64) ** 2
    law[torch.rand(V, V, generator=generator) < 0.125] = 0.0
    return law / law.sum(1, keepdim=True)


def draw_children(law: Tensor, count: int, draws: str, generator: torch.Generator) -> Tensor:
    """[B, count] tokens; -1 where the law has no more of them."""
    if draws == "iid":
        return torch.multinomial(law, count, replacement=True, generator=generator)
    noise = torch.empty_like(law).exponential_(generator=generator)
    keys, tokens = (law / noise).topk(count)
    return torch.where(keys > 0, tokens, -1)


def draft(
    roots: Tensor, parents: tuple[int, ...], law: Tensor, draws: str, generator: torch.Generator
) -> Tensor:
    """[B, nodes] tokens of trees of one shape."""
    tokens = torch.full((len(roots), len(parents)), -1)
    tokens[:, 0] = roots
    for node in range(len(parents)):
        children = [child for child, parent in enumerate(parents) if parent == node]
        if children:
            tokens[:, children] = draw_children(
                law[tokens[:, node].clamp(min=0)], len(children), draws, generator
            )
    return tokens


def decode(
    rule: str, draws: str, parents: tuple[int, ...], target: Tensor, q: Tensor, told: Tensor
) -> Tensor:
    """[V, V] how often each token followed each, over NUM_TOKENS tokens.

    told: what the rule takes for the drafter's law, which is q.
    """
    size, generator = len(parents), torch.Generator().manual_seed(1)
    node_indptr = torch.arange(NUM_REQUESTS + 1, dtype=torch.int32) * size
    block_table = torch.arange(NUM_REQUESTS, dtype=torch.int32)[:, None]
    context_lens = torch.zeros(NUM_REQUESTS, dtype=torch.int32)
    roots = torch.randint(V, (NUM_REQUESTS,), generator=generator)
    pairs = torch.zeros(V * V, dtype=torch.int64)
    num_accepted = 0
    while pairs.sum() < NUM_TOKENS:
        tokens = draft(roots, parents, q, draws, generator)
        rows = tokens.clamp(min=0).reshape(-1)
        plan = treeattn.plan_tree(
            torch.tensor(parents, dtype=torch.int32).repeat(NUM_REQUESTS),
            node_indptr,
            context_lens,
            block_table,
            block_size=4096,
            num_qo_heads=1,
            num_kv_heads=1,
        )
        accepted = treeattn.accept_path(
            target.log().float()[rows],
            tokens.reshape(-1),
            plan,
            rule=rule,
            seeds=torch.arange(NUM_REQUESTS),
            draft_probs=None if rule == "target" else told.float()[rows],
            draws=draws,
        )
        assert (accepted.status == 0).all()
        before = torch.cat((roots[:, None], accepted.emitted[:, :-1]), 1)
        valid = accepted.emitted >= 0
        pairs += torch.bincount((before * V + accepted.emitted)[valid], minlength=V * V)
        roots = accepted.next_tokens
        context_lens = context_lens + 1 + accepted.num_accepted
        num_accepted += int(accepted.num_accepted.sum())
    assert num_accepted > NUM_TOKENS / 5
    return pairs.reshape(V, V)


def p_value(pairs: Tensor, target: Tensor) -> float:
    expected = pairs.sum(1, keepdim=True) * target
    assert (pairs[expected == 0] == 0).all()
    cells = expected > 0
    statistic = ((pairs - expected)[cells] ** 2 / expected[cells]).sum()
    degrees = cells.sum() - V
    return float(torch.special.gammaincc(degrees.double() / 2, statistic / 2))


@pytest.mark.parametrize(
    ("rule", "draws"),
    [
        ("target", "swor"),
        ("multistep", "iid"),
        ("swor", "swor"),
        ("block", "iid"),
        ("block", "swor"),
        ("traversal", "iid"),
        ("traversal", "swor"),
    ],
)
def test_a_million_tokens(rule: str, draws: str) -> None:
    target, q = laws(11), laws(12)
    pairs = decode(rule, draws, CHAIN if rule == "block" else TREE, target, q, q)
    assert pairs.sum() >= NUM_TOKENS
    assert p_value(pairs, target) > 1e-4


@pytest.mark.parametrize("rule", ["multistep", "swor", "block", "traversal"])
def test_a_bias_is_seen(rule: str) -> None:
    """The rule is told a law of the drafter that is a tenth wrong."""
    target, q = laws(11), laws(12)
    told = 0.9 * q + 0.1 * laws(13)
    draws = "iid" if rule in ("multistep", "block") else "swor"
    pairs = decode(rule, draws, CHAIN if rule == "block" else TREE, target, q, told)
    assert p_value(pairs, target) < 1e-4
