# SPDX-License-Identifier: Apache-2.0
"""How much of which request to draft and verify, step by step: a fixed budget, or a policy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeattn.cost_file import CostTables
from treeattn.schedule.budget import choose_nodes
from treeattn.schedule.learned import DEPTHS, RANKS, LearnedAcceptance
from treeattn.schedule.levels import Frontier, everything, most_saving
from treeattn.schedule.policy import Policy
from treeattn.schedule.prune import drop
from treeattn.tree import DraftTree

# How much of what a request's drafts saved is forgotten with every step in which it was asked.
FORGET_ASKED = 0.15
# The part of its time for which a request whose drafts do not pay is asked all the same: so the
# drafter gets another chance.
SECOND_CHANCES = 0.02


class Drafting(Protocol):
    """A request as a schedule sees it.

    context: tokens before the root. room: tokens that may still be emitted.
    """

    @property
    def seq(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def room(self) -> int: ...


class Schedule(Protocol):
    """What the decoder asks at every step, in this order.

    max_nodes: most nodes that a request's tree will ever have.
    """

    @property
    def max_nodes(self) -> int: ...

    def max_requests(self, max_rows: int) -> int:
        """How many requests may share a step of at most `max_rows` rows."""
        ...

    @property
    def counts(self) -> Tensor | None:
        """[2, depths, ranks] int64 to which `accept_path` adds what became of drawn drafts; None
        when nobody wants to know."""
        ...

    def budget(self, batch_size: int) -> tuple[int, str]:
        """Nodes that a draft may have, the root counted, and its shape: "tree" or "chain"."""
        ...

    def ask(self, requests: Sequence[Drafting]) -> list[bool]:
        """For which requests a draft is worth the drafter's time."""
        ...

    def worth(
        self, requests: Sequence[Drafting], frontiers: Sequence[Frontier]
    ) -> list[list[bool]]:
        """Below which nodes the next level is worth drafting: a bool for each of each frontier.

        Before every level, for those of the requests that still draft, all at the same level. Never
        for a tree whose tokens are drawn: to stop by what was drawn would bias its rule.
        """
        ...

    def cut(self, requests: Sequence[Drafting], trees: Sequence[DraftTree]) -> list[DraftTree]:
        """What of the drafts is worth verifying; rows that are left out are gone. Of a request
        without a draft the tree is its root."""
        ...

    def observe(self, request: Drafting, emitted: Sequence[int]) -> None:
        """The step's tokens of a request: the accepted ones, then the target's own."""
        ...

    def release(self, request: Drafting) -> None:
        """The request has left."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same budget for every request and step."""

    max_nodes: int
    shape: str = "tree"

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise ValueError(f"max_nodes must be >= 1, the root counts; got {self.max_nodes}")
        if self.shape not in ("tree", "chain"):
            raise ValueError(f"shape must be tree or chain, got {self.shape!r}")

    def max_requests(self, max_rows: int) -> int:
        return max(1, max_rows // self.max_nodes)

    @property
    def counts(self) -> Tensor | None:
        return None

    def budget(self, batch_size: int) -> tuple[int, str]:
        return self.max_nodes, self.shape

    def ask(self, requests: Sequence[Drafting]) -> list[bool]:
        return [True] * len(requests)

    def worth(
        self, requests: Sequence[Drafting], frontiers: Sequence[Frontier]
    ) -> list[list[bool]]:
        return everything(requests, frontiers)

    def cut(self, requests: Sequence[Drafting], trees: Sequence[DraftTree]) -> list[DraftTree]:
        return list(trees)

    def observe(self, request: Drafting, emitted: Sequence[int]) -> None:
        pass

    def release(self, request: Drafting) -> None:
        pass


@dataclass(eq=False)
class _Known:
    """What is known of one request.

    saved_ms: what its drafts saved lately, per step in which it was asked, before the drafter's own
    time; at first what the policy promises. chance_ms: time put aside for asking it although that
    does not pay. drafted: its last draft as the drafter scored it. cost_ms: what verifying it cost.
    """

    learned: LearnedAcceptance
    saved_ms: float | None = None
    chance_ms: float = 0.0
    asked: bool = False
    drafted: DraftTree | None = None
    cost_ms: float = 0.0


@dataclass(eq=False)
class Online:
    """Follows `policy`, and learns from each request what its drafts are worth.

    Before drafting: a request whose drafts saved less time lately than drafting takes is not asked,
    but for a SECOND_CHANCES part of its time. While drafting, if the costs have a table of that: a
    level is drafted below those nodes only where it saves more time than it takes. After drafting:
    scores are corrected by what was learned, and `choose_nodes` takes the nodes that make the whole
    batch fastest, chains and plain decoding among the answers. What is taken of a drawn tree
    depends on its shape only, never on its tokens, so it stays lossless.

    max_rows: most nodes of a step. chains_only: trees give way to chains. Contexts longer than any
    that was measured cost what that did; of a batch larger than any that was timed, or with more
    rows than were measured, nobody is asked.
    drawn: drafts are drawn, and have no scores: a new request starts from what `counts` says that
    those before it were accepted, by depth and sibling rank. device: of `counts`, the decoder's.
    """

    policy: Policy
    max_rows: int | None = None
    chains_only: bool = False
    drawn: bool = False
    device: torch.device | str = "cpu"
    _known: dict[int, _Known] = field(init=False, default_factory=dict)
    # Of the present step: its requests, what one token of theirs costs without drafts, and the
    # tables for so many requests.
    _batch_size: int = field(init=False, default=0)
    _longest: int = field(init=False, default=0)
    _token_ms: float = field(init=False, default=0.0)
    _tables: CostTables = field(init=False)

    def __post_init__(self) -> None:
        self._tables = self.policy.costs
        self.counts: Tensor | None = None
        if self.drawn:
            self.counts = torch.zeros(2, DEPTHS, RANKS, dtype=torch.int64, device=self.device)

    @property
    def max_nodes(self) -> int:
        return self.policy.max_nodes

    def max_requests(self, max_rows: int) -> int:
        return max_rows  # `cut` leaves each its root at least

    def budget(self, batch_size: int) -> tuple[int, str]:
        verdict = self.policy.verdict(batch_size)
        chain = self.chains_only or verdict.shape == "chain"
        return verdict.num_nodes, "chain" if chain else "tree"

    def ask(self, requests: Sequence[Drafting]) -> list[bool]:
        batch_size = len(requests)
        verdict = self.policy.verdict(batch_size)
        measured = self.policy.costs.covers(batch_size)
        if measured:
            self._tables = self.policy.costs.at(batch_size)
        self._batch_size, self._longest = batch_size, self._context(requests)
        step_ms = float(self._tables.costs.after_draft([batch_size], self._longest)[0])
        measured &= step_ms < math.inf
        self._token_ms = step_ms / batch_size if measured else 0.0
        draft_ms = verdict.draft_ms / batch_size
        promised_ms = self._token_ms * (1 + verdict.accepted) * verdict.gain + draft_ms
        for request in requests:
            if request.seq not in self._known:
                self._known[request.seq] = _Known(self._fresh())
            known = self._known[request.seq]
            known.asked = False
            if not measured:
                continue
            if known.saved_ms is None:
                known.saved_ms = promised_ms
            due = known.chance_ms >= draft_ms
            pays = verdict.shape != "off" and (known.saved_ms > draft_ms or due)
            known.asked = pays and request.room > 1
        return [self._known[request.seq].asked for request in requests]

    def worth(
        self, requests: Sequence[Drafting], frontiers: Sequence[Frontier]
    ) -> list[list[bool]]:
        draft = self._tables.costs.draft
        if draft is None:
            return everything(requests, frontiers)
        tokens = np.concatenate(
            [
                self._known[request.seq].learned.promise(frontier.tree, frontier.nodes)
                for request, frontier in zip(requests, frontiers, strict=True)
            ]
        )
        # A token is worth what it takes with drafts, where they pay, not without: that is how the
        # next one would be had.
        verdict = self.policy.verdict(self._batch_size)
        token_ms = self._token_ms / max(1.0, verdict.speedup)
        rows = self._batch_size - len(requests)
        rows += sum(np.count_nonzero(frontier.on_paths) for frontier in frontiers)
        most_rows = max(rows, self._batch_size * verdict.num_nodes)
        asked = most_saving(
            tokens * token_ms,
            draft.along(frontiers[0].level, np.arange(1, len(tokens) + 1)),
            self._tables.costs.after_draft(np.arange(rows, most_rows + 1), self._longest),
        )
        ends = list(accumulate(len(frontier.nodes) for frontier in frontiers))
        return [part.tolist() for part in np.split(asked, ends[:-1])]

    def cut(self, requests: Sequence[Drafting], trees: Sequence[DraftTree]) -> list[DraftTree]:
        kept, row_ms = list(trees), 0.0
        if any(len(tree) > 1 for tree in trees):
            kept, row_ms = self._chosen(requests, trees)
        for request, tree, part in zip(requests, trees, kept, strict=True):
            known = self._known[request.seq]
            known.drafted = tree if known.asked else None
            known.cost_ms = row_ms * (len(part) - 1)
        return kept

    def _chosen(
        self, requests: Sequence[Drafting], trees: Sequence[DraftTree]
    ) -> tuple[list[DraftTree], float]:
        """What of the drafts is worth verifying, and what each row below a root costs."""
        asked = any(self._known[request.seq].asked for request in requests)
        draft_ms = self.policy.verdict(len(requests)).draft_ms if asked else 0.0
        learned = [self._known[request.seq].learned for request in requests]
        plan = choose_nodes(
            trees,
            [one.log_chances(tree) for one, tree in zip(learned, trees, strict=True)],
            self._tables.costs_once_drafted,
            context=self._context(requests),
            max_rows=self.max_rows,
            max_depths=[request.room - 1 for request in requests],
            max_ms=self.policy.max_step_ms,
            spent_ms=draft_ms,
        )
        kept = [_part(tree, mask) for tree, mask in zip(trees, plan.masks, strict=True)]
        extra_ms = plan.ms - draft_ms - self._token_ms * len(requests)
        return kept, extra_ms / max(1, plan.rows - len(requests))

    def observe(self, request: Drafting, emitted: Sequence[int]) -> None:
        known = self._known.get(request.seq)
        if known is None:
            return
        known.chance_ms = 0.0 if known.asked else known.chance_ms + SECOND_CHANCES * self._token_ms
        if known.drafted is None or known.saved_ms is None:
            return
        if len(known.drafted) > 1:  # a root alone teaches nothing
            known.learned.observe(known.drafted, emitted)
        saved_ms = (len(emitted) - 1) * self._token_ms - known.cost_ms
        known.saved_ms += FORGET_ASKED * (saved_ms - known.saved_ms)

    def release(self, request: Drafting) -> None:
        self._known.pop(request.seq, None)

    def _fresh(self) -> LearnedAcceptance:
        if self.counts is None:
            return self.policy.fresh()
        offered, accepted = self.counts.double().cpu().numpy()
        return LearnedAcceptance(offered, accepted, offered[:, 0])

    def _context(self, requests: Sequence[Drafting]) -> int:
        longest = max(request.context for request in requests)
        return min(max(1, longest), self._tables.max_context)


def _part(tree: DraftTree, mask: npt.NDArray[np.bool_]) -> DraftTree:
    """What `mask` keeps. Without scores it was chosen by the shape alone, not by what was drawn."""
    if tree.draws == "deterministic" and mask.all():
        return tree
    return tree.keep(mask) if tree.scores is None else drop(tree, mask)
