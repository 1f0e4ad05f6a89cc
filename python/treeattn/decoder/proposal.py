# SPDX-License-Identifier: Apache-2.0
"""What a step verifies: the drafter's trees, fitted to the budget, and the laws they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treeattn.decoder.drafters.base import Drafter, DraftsByLevel, DrawsTokens
from treeattn.decoder.drafters.drawn import DraftLaws, without_missing
from treeattn.decoder.request import Request
from treeattn.decoder.sampling import Sampling
from treeattn.schedule import Schedule
from treeattn.schedule.prune import fit
from treeattn.tree import DraftTree


@dataclass(frozen=True)
class Proposal:
    """One tree per request; `laws` when the acceptance rule reads them."""

    trees: list[DraftTree]
    laws: DraftLaws | None = None


def propose(
    drafter: Drafter,
    requests: Sequence[Request],
    sampling: Sampling,
    schedule: Schedule,
) -> Proposal:
    """Likeliest trees, or drawn ones where the rule corrects for the law of the draft.

    `schedule` says who is asked for how much, where a draft stops, and what of it is verified.
    """
    num_nodes, shape = schedule.budget(len(requests))
    asked = [request for request, ask in zip(requests, schedule.ask(requests), strict=True) if ask]
    laws = None
    if sampling.draws is None:
        trees = _likeliest(drafter, asked, num_nodes, shape, schedule) if asked else []
    else:
        if not isinstance(drafter, DrawsTokens):
            raise ValueError(f"rule {sampling.rule} needs a drafter with draw(), got {drafter!r}")
        trees, laws = drafter.draw(
            asked, num_nodes, shape, draws=sampling.draws, temperature=sampling.temperature
        )
        _check_drawn(trees, laws, sampling)
        probs = dict(zip(asked, laws.probs, strict=True))
        laws = DraftLaws([probs.get(request) for request in requests], laws.ids)
    drafts = dict(zip(asked, trees, strict=True))
    fitted = [_fit(drafts.get(request), request, num_nodes) for request in requests]
    kept = schedule.cut(requests, fitted)
    return Proposal(kept if laws is None else [without_missing(tree) for tree in kept], laws)


def _likeliest(
    drafter: Drafter, requests: Sequence[Request], num_nodes: int, shape: str, schedule: Schedule
) -> list[DraftTree | None]:
    if isinstance(drafter, DraftsByLevel):
        return drafter.propose_while(requests, num_nodes, shape, schedule.worth)
    return drafter.propose(requests, num_nodes, shape)


def _check_drawn(trees: Sequence[DraftTree | None], laws: DraftLaws, sampling: Sampling) -> None:
    """A tree that was drawn otherwise, or has no law, would bias what is emitted."""
    for b, (tree, law) in enumerate(zip(trees, laws.probs, strict=True)):
        if tree is None or len(tree) < 2:
            continue
        if tree.draws != sampling.draws:
            raise ValueError(
                f"rule {sampling.rule} needs drafts with draws={sampling.draws!r}, but the draft "
                f"of request {b} has {tree.draws!r}"
            )
        if law is None:
            raise ValueError(f"rule {sampling.rule} needs the law of the draft of request {b}")


def _fit(tree: DraftTree | None, request: Request, num_nodes: int) -> DraftTree:
    """A draft, cut to what may be verified; without one the root."""
    if tree is None or len(tree) == 0:
        return DraftTree.chain(request.tokens[-1:])
    if tree.tokens[0] != request.tokens[-1]:
        raise ValueError(
            f"a draft's root must be the last token of its request, {request.tokens[-1]}, "
            f"got {tree.tokens[0]}"
        )
    return fit(tree, num_nodes, request.room)
