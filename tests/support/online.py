# SPDX-License-Identifier: Apache-2.0
"""Steps of a policy without a model: requests, drafts, costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from treeattn.cost_file import CostTables
from treeattn.schedule import Online, Policy, Verdict
from treeattn.schedule.learned import DEPTHS, RANKS
from treeattn.tree import DraftTree

CHEAP_ROWS = tuple((rows, 1000, 10.0 + rows / 100) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256))
DEAR_ROWS = tuple((rows, 1000, 10.0 * rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256))


@dataclass(eq=False)
class Drafting:
    seq: int
    context: int = 100
    room: int = 50


def policy(
    verify: Sequence[tuple[float, float, float]] = CHEAP_ROWS,
    *,
    shape: str = "tree",
    num_nodes: int = 8,
    draft_ms: float = 0.5,
    accepted: float = 1.5,
    speedup: float = 2.0,
    max_step_ms: float | None = None,
    rate: float = 0.8,
) -> Policy:
    """One verdict for every batch; `rate`: what the drafter's word was worth so far."""
    said = np.full((DEPTHS, RANKS), 1e6)
    return Policy(
        {1: Verdict(shape, num_nodes, draft_ms, accepted, speedup)},
        CostTables(verify=tuple(verify)),
        "suffix",
        learned={"said": said.tolist(), "seen": (rate * said).tolist()},
        max_step_ms=max_step_ms,
    )


def chain(length: int, log_prob: float = -0.1) -> DraftTree:
    return DraftTree(range(length), range(-1, length - 1), [log_prob * i for i in range(length)])


def root(token: int = 0) -> DraftTree:
    return DraftTree.chain([token])


def step(
    online: Online, requests: Sequence[Drafting], drafts: Sequence[DraftTree]
) -> tuple[list[bool], list[DraftTree]]:
    asked = online.ask(requests)
    offered = [draft if ask else root() for draft, ask in zip(drafts, asked, strict=True)]
    return asked, online.cut(requests, offered)
