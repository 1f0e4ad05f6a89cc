# SPDX-License-Identifier: Apache-2.0
"""Random calls of accept_path under the rules that try children, with laws that go together."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from treeattn.plan import TreePlan

from support.acceptance import PADDING, plan_of, random_allowed, random_sampling
from support.rules import CALLS, WITH_DRAFTS, distinct_siblings, shape

MOST_NODES = 9  # of a tree of any shape


@dataclass(frozen=True, eq=False)
class Call:
    """Arguments of accept_path, those of the trees apart."""

    plan: TreePlan
    logits: Tensor
    tokens: Tensor
    options: dict[str, Any]


def random_call(
    rng: random.Random, name: str, vocab_size: int, dtype: torch.dtype, num_requests: int
) -> Call:
    """One of CALLS. Drafts resemble the target, so that paths go on; edge cases are common."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    trees = [_tree(rng, name) for _ in range(num_requests)]
    contexts = [rng.randrange(1000) for _ in trees]
    plan = plan_of(trees, contexts, max_depth=rng.choice([None, MOST_NODES + 2]))
    count = plan.num_nodes
    few = min(vocab_size, rng.choice([2, 4, 6]))
    logits = torch.randn(count, vocab_size, generator=generator) * rng.choice([0.3, 1.0, 3.0])
    logits[:, :few] += rng.choice([0.0, 2.0, 5.0])
    if rng.random() < 0.3:
        logits = logits.round()  # ties, at the borders of filters too
    tokens = torch.randint(0, few, (count,), generator=generator)
    options: dict[str, Any] = {**CALLS[name], **random_sampling(rng, generator, plan, vocab_size)}
    if name in WITH_DRAFTS:
        drafts = logits + rng.choice([0.0, 0.3, 1.0, 2.0]) * torch.randn(
            count, vocab_size, generator=generator
        )
        if rng.random() < 0.1:  # p = q
            options.pop("temperature", None)
        _edge_rows(rng, logits, drafts)
        _give_drafts(rng, drafts, dtype, options)
        if rng.random() < 0.3:
            _shuffle_rows(rng, plan, options)
        if rng.random() < 0.2:
            _map_columns(rng, vocab_size, options)
    logits = logits.to(dtype)
    for row in range(count):
        if rng.random() < 0.02:
            logits[row, rng.randrange(vocab_size)] = rng.choice([torch.nan, torch.inf])
        if rng.random() < 0.01:
            logits[row] = -torch.inf
        if rng.random() < 0.1:
            tokens[row] = rng.choice([-1, vocab_size, PADDING, vocab_size - 1])
    if rng.random() < 0.15:
        options["allowed"] = random_allowed(rng, count, vocab_size)
    if rng.random() < 0.2:
        options["return_logprobs"] = True
    if rng.random() < 0.2:
        options["return_processed_logprobs"] = True
    if "swor" in name:
        tokens = torch.cat(
            [
                torch.tensor(distinct_siblings(tree, own.tolist()), dtype=torch.int64)
                for tree, own in zip(trees, tokens.split([len(t) for t in trees]), strict=True)
            ]
        )
    return Call(plan, logits, tokens.to(rng.choice([torch.int32, torch.int64])), options)


def _tree(rng: random.Random, name: str) -> list[int]:
    """Any shape; often several children with one below each, so that many are rejected."""
    if name == "block" or rng.random() < 0.6:
        return shape(rng, name, rng.randrange(MOST_NODES + 1))
    width = rng.randrange(2, 6)
    return [-1, *[0] * width, *(child for child in range(1, width + 1) if rng.random() < 0.7)]


def _edge_rows(rng: random.Random, logits: Tensor, drafts: Tensor) -> None:
    """One-hot rows and ids without mass, in the target, in the draft or in both."""
    for row in range(len(logits)):
        kind = rng.random()
        if kind < 0.05:
            for law in rng.choice([(logits,), (drafts,), (logits, drafts)]):
                law[row] = -torch.inf
                law[row, rng.randrange(min(law.shape[1], 3))] = 0.0
        elif kind < 0.2:
            law = rng.choice([logits, drafts])
            law[row, rng.sample(range(law.shape[1]), law.shape[1] // 3)] = -torch.inf
        elif kind < 0.22:
            drafts[row] = -torch.inf


def _give_drafts(
    rng: random.Random, drafts: Tensor, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """As probabilities or as logits, of fewer ids than the target's, or with a bad entry."""
    width = drafts.shape[1] - rng.choice([0, 0, 0, drafts.shape[1] // 4])
    drafts = drafts[:, :width].contiguous()
    name = rng.choice(["draft_probs", "draft_logits"])
    if name == "draft_probs":
        drafts = drafts.softmax(1).nan_to_num(0.0)  # of rows without any mass
    drafts = drafts.to(rng.choice([dtype, torch.float32]))
    for row in range(len(drafts)):
        if rng.random() < 0.02:
            drafts[row, rng.randrange(width)] = rng.choice([torch.nan, torch.inf])
    options[name] = drafts


def _shuffle_rows(rng: random.Random, plan: TreePlan, options: dict[str, Any]) -> None:
    """Rows in another order, one of them of another drafter."""
    name = "draft_probs" if "draft_probs" in options else "draft_logits"
    laws = options[name]
    num_rows = len(laws)
    if num_rows == 0:
        return
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    start = plan.node_indptr[:-1].repeat_interleave(plan.node_indptr.diff())
    rows = order.argsort()[(plan.parents + start).clamp(min=0).long()]
    other = torch.tensor([rng.random() < 0.2 for _ in range(num_rows)])
    options[name] = torch.cat([laws[order], laws[:1]])
    options["draft_rows"] = torch.where(other, num_rows, rows).int()


def _map_columns(rng: random.Random, vocab_size: int, options: dict[str, Any]) -> None:
    """The same laws with columns in another order."""
    name = "draft_probs" if "draft_probs" in options else "draft_logits"
    order = list(range(options[name].shape[1]))
    rng.shuffle(order)
    options[name] = options[name][:, order].contiguous()
    options["draft_ids"] = torch.tensor(order, dtype=rng.choice([torch.int32, torch.int64]))
