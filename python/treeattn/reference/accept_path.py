# SPDX-License-Identifier: Apache-2.0
"""The accepted path of each tree, one node and one full row at a time, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from treeattn.plan import TreePlan
from treeattn.reference import rules
from treeattn.reference.laws import (
    OK,
    BadRow,
    Drafts,
    Filters,
    allowed_ids,
    argmax,
    draft_law,
    target_law,
)
from treeattn.reference.randomness import Chance, Given, Seeded, inverse_cdf
from treeattn.sampling import check_draws

Rule: TypeAlias = Callable[[rules.Step, list[int]], int]


@dataclass(frozen=True, eq=False)
class Accepted:
    """The fields of `treeattn.AcceptedPath`; same shapes and dtypes."""

    path: Tensor
    num_accepted: Tensor
    next_tokens: Tensor
    status: Tensor
    emitted: Tensor
    logprobs: Tensor | None
    processed_logprobs: Tensor | None


def accept_path(
    logits: Tensor,
    tokens: Tensor,
    plan: TreePlan,
    *,
    rule: str = "greedy",
    temperature: float | Tensor | None = None,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    seeds: int | Tensor | None = None,
    draft_probs: Tensor | None = None,
    draft_rows: Tensor | None = None,
    draws: str | None = None,
    allowed: Tensor | None = None,
    uniforms: Tensor | None = None,
    typical_epsilon: float = 0.3,
    typical_delta: float = 0.09,
    return_logprobs: bool = False,
    draft_logits: Tensor | None = None,
    draft_ids: Tensor | None = None,
    return_processed_logprobs: bool = False,
    counts: Tensor | None = None,
) -> Accepted:
    """As `treeattn.accept_path`, for every rule; float64 inputs keep their precision.

    draft_rows: [N] rows of the draft laws over the whole batch, default: the parent's own.

    Raises ValueError for draws under which the rule is biased, for rule block on what is no chain,
    and for siblings of one draft row that hold one token under draws "swor". Nothing else is
    checked. Rows of temperature 0 are greedy, and so not looked at by the last.
    """
    draws = check_draws(rule, draws)
    num_requests, width = plan.num_requests, plan.max_depth + 1
    path = torch.full((num_requests, width), -1, dtype=torch.int32)
    emitted = torch.full((num_requests, width), -1, dtype=torch.int64)
    logprobs = torch.full((num_requests, width), math.nan)
    processed = torch.full((num_requests, width), math.nan)
    num_accepted = torch.zeros(num_requests, dtype=torch.int32)
    next_tokens = torch.full((num_requests,), -1, dtype=torch.int64)
    status = plan.status.clone()
    for b in range(num_requests):
        start, end = plan.node_indptr[b : b + 2].tolist()
        if int(plan.status[b]) != OK or start == end:
            continue
        heat = float(_of(temperature, b, 1.0))
        filters = Filters(heat)
        if rule != "typical":  # which knows the temperature only
            filters = Filters(
                heat, int(_of(top_k, b, 0)), float(_of(top_p, b, 1.0)), float(_of(min_p, b, 0.0))
            )
        chance: Chance | None = None
        if uniforms is not None:
            chance = Given(uniforms[start:end])
        elif seeds is not None:
            positions = plan.positions[start:end].tolist()
            chance = Seeded(int(_of(seeds, b, 0)), positions)
        rows = plan.parents + start if draft_rows is None else draft_rows
        step = _Step(
            logits=logits[start:end],
            tokens=tokens[start:end].tolist(),
            parents=plan.parents[start:end].tolist(),
            filters=filters,
            allowed=None if allowed is None else allowed[start:end],
            drafts=Drafts(draft_probs, draft_logits, draft_ids),
            draft_rows=rows[start:end].tolist(),
            chance=chance,
        )
        if rule == "block":
            _check_chain(b, step.parents)
        if rule in ("swor", "traversal") and draws == "swor" and heat != 0:
            _check_distinct(rule, start, step)
        run = rules.greedy if heat == 0 else _rule(rule, draws, typical_epsilon, typical_delta)
        nodes, token = [0], -1
        try:
            token = run(step, nodes)
        except BadRow as bad:
            status[b] = bad.status
        num_accepted[b], next_tokens[b] = len(nodes) - 1, token
        path[b, : len(nodes)] = torch.tensor(nodes)
        out = [step.tokens[node] for node in nodes[1:]] + [token] * (token >= 0)
        for depth, (node, emit) in enumerate(zip(nodes, out, strict=False)):
            emitted[b, depth] = emit
            logprobs[b, depth] = step.logits[node].double().log_softmax(0)[emit]
            greedy = rule == "greedy" or heat == 0
            processed[b, depth] = 0.0 if greedy else step.target(node)[emit].log()
        if counts is not None and int(status[b]) == OK:
            _count(counts, step, nodes)
    return Accepted(
        path,
        num_accepted,
        next_tokens,
        status,
        emitted,
        logprobs if return_logprobs else None,
        processed if return_processed_logprobs else None,
    )


@dataclass(frozen=True, eq=False)
class _Step:
    """`rules.Step` over one request's rows."""

    logits: Tensor
    tokens: list[int]
    parents: list[int]
    filters: Filters
    allowed: Tensor | None
    drafts: Drafts
    draft_rows: list[int]
    chance: Chance | None

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    @property
    def samples(self) -> bool:
        return self.chance is not None

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def token(self, node: int) -> int:
        return self.tokens[node]

    def greedy(self, node: int) -> int:
        return argmax(self.logits[node].double(), self._mask(node))

    def target(self, node: int) -> Tensor:
        return target_law(self.logits[node].double(), self._mask(node), self.filters)

    def draft_row(self, node: int) -> int:
        return self.draft_rows[node]

    def draft(self, row: int) -> Tensor:
        return draft_law(self.drafts, row, self.vocab_size)

    def accepts(self, node: int, ordinal: int, probability: float) -> bool:
        assert self.chance is not None
        return self.chance.coin(node, ordinal) < probability

    def draw(self, node: int, law: Tensor, purpose: int) -> int:
        assert self.chance is not None
        return inverse_cdf(law, self.chance.uniform(node, purpose))

    def _mask(self, node: int) -> Tensor | None:
        return None if self.allowed is None else allowed_ids(self.allowed[node], self.vocab_size)


def _rule(name: str, draws: str | None, epsilon: float, delta: float) -> Rule:
    by_name: dict[str, Rule] = {
        "greedy": rules.greedy,
        "target": rules.target,
        "multistep": rules.multistep,
        "swor": rules.swor,
        "block": rules.block,
        "traversal": partial(rules.traversal, swor=draws == "swor"),
        "typical": partial(rules.typical, epsilon=epsilon, delta=delta),
    }
    return by_name[name]


def _check_chain(request: int, parents: list[int]) -> None:
    for node, parent in enumerate(parents):
        if parent != node - 1:
            raise ValueError(
                "accept_path: rule block takes chains only, parents[i] == i - 1; "
                f"request {request} has parents[{node}] = {parent}"
            )


def _check_distinct(rule: str, start: int, step: _Step) -> None:
    seen: dict[tuple[int, int, int], int] = {}
    for node in range(1, len(step.tokens)):
        token = step.tokens[node]
        key = step.parents[node], step.draft_rows[node], token
        if 0 <= token < step.vocab_size and key in seen:
            raise ValueError(
                f"accept_path: rule {rule} with draws='swor' takes siblings with distinct tokens; "
                f"tokens[{start + node}] and its sibling tokens[{start + seen[key]}] are both "
                f"{token}"
            )
        seen[key] = node


def _count(counts: Tensor, step: _Step, nodes: list[int]) -> None:
    """counts[0, d, r]: a node of the path at depth d had an r-th child; counts[1]: it was taken."""
    _, num_depths, num_ranks = counts.shape
    for depth, node in enumerate(nodes[:num_depths]):
        for rank, child in enumerate(step.children(node)[:num_ranks]):
            counts[0, depth, rank] += 1
            counts[1, depth, rank] += child in nodes


def _of(values: float | Tensor | None, request: int, default: float) -> float:
    if values is None:
        return default
    return values[request].item() if isinstance(values, Tensor) else values
