# SPDX-License-Identifier: Apache-2.0
"""The exact law of what the op emits: the chance of each event is where its uniform turns it.

The oracle says which events there are, on the same trees. Where each turns is asked from the op
alone: the uniforms of the events before are set to what led here, and the event's own is bisected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from treeattn.ops import AcceptedPath, accept_path

from support.acceptance import on, plan_of
from support.enumerate import (
    MISSING,
    Branches,
    Draw,
    Emitted,
    Rule,
    Tokens,
    Toy,
    ToyStep,
    outcomes,
)

STEPS = 24  # of a bisection: fp32 holds all multiples of 2^-24 in [0, 1)
ACCEPT, REJECT = 0.0, 1 - 2.0**-24
COIN, DRAW = 0, 1  # columns of `uniforms`


@dataclass(frozen=True)
class Event:
    """A coin for a node, or the draw made at it, on a tree and after earlier events."""

    tokens: Tokens  # of the tree
    before: tuple[tuple[int, int, float], ...]  # (node, column, uniform)
    node: int
    column: int


@dataclass(frozen=True)
class Outcome:
    """One way through a step: the chance of its tree, and what came out of each event."""

    weight: float
    emitted: Tokens
    events: list[tuple[Event, int]]  # 0 for an accepting coin, 1 for another; the id of a draw


@dataclass(eq=False)
class Recorder(ToyStep):
    """Notes (node, column, what came out, a uniform for it) of each event, and its branch."""

    noted: list[tuple[int, int, int, float]] = field(default_factory=list)
    branches_of_events: set[int] = field(default_factory=set)

    def accepts(self, node: int, ordinal: int, probability: float) -> bool:
        accepted = super().accepts(node, ordinal, probability)
        self._note(node, COIN, int(not accepted), ACCEPT if accepted else REJECT)
        return accepted

    def draw(self, node: int, law: Tensor, purpose: int) -> int:
        token = super().draw(node, law, purpose)
        self._note(node, DRAW, token, float(law[:token].sum() + law[token] / 2))
        return token

    def _note(self, node: int, column: int, result: int, uniform: float) -> None:
        self.noted.append((node, column, result, uniform))
        self.branches_of_events.add(self.branches.used - 1)


def emitted_by_op(
    toy: Toy, parents: list[int], draw_siblings: Draw, rule: Rule, options: dict[str, Any],
    device: str = "cpu",
) -> Emitted:  # fmt: skip
    """As `enumerate.emitted`, with the op's chances in place of the oracle's."""
    found = list(_outcomes(toy, parents, draw_siblings, rule))
    events = list({event for outcome in found for event, _ in outcome.events})
    step = ToyStep(toy, parents, draw_siblings, Branches())
    chances = dict(zip(events, _chances(step, events, options, device), strict=True))
    weights: dict[Tokens, float] = defaultdict(float)
    for outcome in found:
        weight = outcome.weight
        for event, result in outcome.events:
            weight *= chances[event][result]
        weights[outcome.emitted] += weight
    return Emitted(toy, weights)


def _outcomes(toy: Toy, parents: list[int], draw: Draw, rule: Rule) -> Iterator[Outcome]:
    def run(branches: Branches) -> tuple[Branches, Recorder, Tokens]:
        step, path = Recorder(toy, parents, draw, branches), [0]
        last = rule(step, path)
        return branches, step, (*(step.tokens[node] for node in path[1:]), last)

    for _, (branches, step, emitted) in outcomes(run):
        weight = 1.0
        for i, (choice, weights) in enumerate(zip(branches.taken, branches.weights, strict=True)):
            weight *= 1.0 if i in step.branches_of_events else weights[choice]
        # Nobody looked at the tokens that were not drawn.
        tokens = tuple(step.tokens.get(node, MISSING) for node in range(len(parents)))
        events, before = [], []
        for node, column, result, uniform in step.noted:
            events.append((Event(tokens, tuple(before), node, column), result))
            before.append((node, column, uniform))
        yield Outcome(weight, emitted, events)


def _chances(
    step: ToyStep, events: list[Event], options: dict[str, Any], device: str
) -> list[list[float]]:
    """For each event the chance of each result."""
    borders = range(step.vocab_size - 1)
    questions = [(e, b) for e in events for b in (borders if e.column == DRAW else (0,))]
    turns = iter(_turns(step, questions, options, device).tolist())
    found = []
    for event in events:
        asked = borders if event.column == DRAW else (0,)
        found.append([b - a for a, b in pairwise([0.0, *(next(turns) for _ in asked), 1.0])])
    return found


def _turns(
    step: ToyStep, questions: list[tuple[Event, int]], options: dict[str, Any], device: str
) -> Tensor:
    """[questions]: below which uniform the event's result is at most the border."""
    size, count = len(step.parents), len(questions)
    plan = on(device, plan_of([step.parents] * count))
    given = _rows(step, [event.tokens for event, _ in questions])
    x = {name: on(device, value) for name, value in given.items()}
    uniforms = torch.zeros(count, size, 2, dtype=torch.float64)
    for i, (event, _) in enumerate(questions):
        for node, column, uniform in event.before:
            uniforms[i, node, column] = uniform
    rows = torch.arange(count)
    nodes = torch.tensor([event.node for event, _ in questions])
    columns = torch.tensor([event.column for event, _ in questions])
    depths = plan.depths.cpu().reshape(count, size)[rows, nodes].long()
    limits = torch.tensor([border for _, border in questions])
    low, high = torch.zeros(2, count, dtype=torch.float64)
    high += 1
    for _ in range(STEPS):
        middle = (low + high) / 2
        uniforms[rows, nodes, columns] = middle
        flat = on(device, uniforms.reshape(-1, 2).float())
        got = accept_path(**x, plan=plan, uniforms=flat, **options)
        below = _is_at_most(got, nodes, columns, depths, limits)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _is_at_most(
    got: AcceptedPath, nodes: Tensor, columns: Tensor, depths: Tensor, limits: Tensor
) -> Tensor:
    assert got.status.eq(0).all()
    accepted = (got.path.cpu() == nodes[:, None]).any(1)
    drawn = got.emitted.cpu().gather(1, depths[:, None])[:, 0]  # the token after the node
    return torch.where(columns == COIN, accepted, drawn <= limits)


def _rows(step: ToyStep, trees: list[Tokens]) -> dict[str, Tensor]:
    """Logits, tokens and draft laws of a batch of trees of one shape, in fp32."""
    size, num_drafters = len(step.parents), len(step.toy.drafts)
    by_tree: dict[Tokens, tuple[Tensor, Tensor]] = {}
    for tokens in set(trees):
        step.tokens = dict(enumerate(tokens))
        targets = torch.stack([step.target(node) for node in range(size)])
        drafts = torch.stack([step.draft(row) for row in range(size * num_drafters)])
        by_tree[tokens] = targets.log().float(), drafts.float()
    rows = torch.tensor([-1, *(step.draft_row(node) for node in range(1, size))])
    starts = torch.arange(len(trees))[:, None] * size * num_drafters
    return {
        "logits": torch.cat([by_tree[tokens][0] for tokens in trees]),
        "tokens": torch.tensor(trees).flatten(),
        "draft_probs": torch.cat([by_tree[tokens][1] for tokens in trees]),
        "draft_rows": (rows + starts).flatten().int(),
    }
