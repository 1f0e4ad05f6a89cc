# SPDX-License-Identifier: Apache-2.0
"""The laws that acceptance compares, one row of float64 at a time: target, draft, residual."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

OK, NON_FINITE, NO_TOKEN_LEFT, INACTIVE = 0, 1, 2, 3


class BadRow(Exception):
    """A row that gives no law; `status` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass(frozen=True)
class Filters:
    """What shapes one request's target law."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, eq=False)
class Drafts:
    """The laws that were drafted from, as `accept_path` is given them."""

    probs: Tensor | None
    logits: Tensor | None
    ids: Tensor | None


def argmax(row: Tensor, mask: Tensor | None) -> int:
    """The lowest id of the largest allowed logit."""
    row = allowed_logits(row, mask)
    return int((row == row.max()).nonzero()[0])


def target_law(row: Tensor, mask: Tensor | None, filters: Filters) -> Tensor:
    """[V]: the target's law after temperature, mask and filters."""
    row = allowed_logits(row, mask)
    probs = ((row - row.max()) / filters.temperature).softmax(0)
    by_rank = row.sort(descending=True, stable=True).indices
    if 0 < filters.top_k < len(row):
        probs[by_rank[filters.top_k :]] = 0
        probs = probs / probs.sum()
    if filters.top_p < 1:
        mass = probs[by_rank].cumsum(0)
        shortest = int((mass < filters.top_p).sum()) + 1
        probs[by_rank[shortest:]] = 0
        probs = probs / probs.sum()
    if filters.min_p > 0:
        probs = torch.where(probs >= filters.min_p * probs.max(), probs, 0)
    return probs / probs.sum()


def allowed_logits(row: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        row = row.masked_fill(~mask, -math.inf)
    if bool(row.isnan().any()) or bool((row == math.inf).any()):
        raise BadRow(NON_FINITE)
    if not bool((row > -math.inf).any()):
        raise BadRow(NO_TOKEN_LEFT)
    return row


def allowed_ids(words: Tensor, vocab_size: int) -> Tensor:
    """[V] bool from a row of bit words."""
    bits = words[:, None].bitwise_right_shift(torch.arange(32, dtype=torch.int32)) & 1
    return bits.flatten()[:vocab_size].bool()


def draft_law(drafts: Drafts, row: int, vocab_size: int) -> Tensor:
    """[V] from one row; ids without a column have none. Probabilities are trusted."""
    given = drafts.probs if drafts.logits is None else drafts.logits
    assert given is not None
    masses = given[row].double()
    if bool(masses.isnan().any()) or bool((masses == math.inf).any()):
        raise BadRow(NON_FINITE)
    if drafts.logits is not None and bool((masses > -math.inf).any()):
        masses = masses.softmax(0)
    law = torch.zeros(vocab_size, dtype=torch.float64)
    law[torch.arange(len(masses)) if drafts.ids is None else drafts.ids.long()] = masses.clamp(
        min=0
    )
    return law


def excess(law: Tensor, draft: Tensor) -> Tensor:
    """What `law` has beyond `draft`, not normalised."""
    return (law - draft).clamp(min=0)


def residual(law: Tensor, draft: Tensor) -> Tensor:
    """The law of a token after a trial drawn from `draft` was rejected.

    Where nothing is left, `law` is `draft` up to rounding, and stays.
    """
    rest = excess(law, draft)
    rest = rest if bool(rest.sum() > 0) else law
    return rest / rest.sum()


def without(draft: Tensor, token: int) -> Tensor:
    """The law of the next sibling drawn without replacement, after `token`."""
    rest = draft.clone()
    rest[token] = 0
    mass = rest.sum()
    return rest / mass if bool(mass > 0) else rest
