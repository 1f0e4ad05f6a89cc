# SPDX-License-Identifier: Apache-2.0
"""How tokens are drawn from the target's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeattn.decoder.drafters.drawn import DraftLaws
from treeattn.decoder.request import Request
from treeattn.ops import RULES, AcceptedPath, accept_path
from treeattn.plan import TreePlan
from treeattn.tree import TreeBatch

# The rules that correct for the law of a draft, and how its tokens are drawn for them. Traversal
# takes both; without replacement a budget holds more different tokens.
DRAWS_OF_RULE = {"multistep": "iid", "swor": "swor", "block": "iid", "traversal": "swor"}


@dataclass(frozen=True)
class Sampling:
    """The acceptance rule and its parameters, as in `treeattn.accept_path`."""

    rule: str = "greedy"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if not self.top_p > 0:
            raise ValueError(f"top_p must be > 0, got {self.top_p}")
        if not self.min_p <= 1:
            raise ValueError(f"min_p must be <= 1, got {self.min_p}")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be > 0, got {self.repetition_penalty}")

    @property
    def draws(self) -> str | None:
        """How a draft must be drawn for the rule to be lossless; None: any way, the best one."""
        return None if self.temperature == 0 else DRAWS_OF_RULE.get(self.rule)

    def accept(
        self,
        logits: Tensor,
        batch: TreeBatch,
        plan: TreePlan,
        requests: Sequence[Request],
        laws: DraftLaws | None = None,
        counts: Tensor | None = None,
    ) -> AcceptedPath:
        """Walk each request's tree; logits: [N, V]. laws: of the trees, if the rule reads them.
        counts: added to, as by `accept_path`."""
        if self.repetition_penalty != 1.0:
            logits = penalise_repetition(logits, batch, requests, self.repetition_penalty)
        return accept_path(
            logits,
            batch.tokens,
            plan,
            rule="greedy" if self.temperature == 0 else self.rule,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seeds=torch.tensor([r.seed for r in requests], device=logits.device),
            draws=self.draws,
            counts=counts,
            **draft_laws(laws, batch),
        )


class LawArguments(TypedDict, total=False):
    """The arguments of `accept_path` that say what a draft was drawn from."""

    draft_probs: Tensor
    draft_rows: Tensor
    draft_ids: Tensor | None


def draft_laws(laws: DraftLaws | None, batch: TreeBatch) -> LawArguments:
    """The laws of a batch's trees as `accept_path` takes them; nothing when there are none."""
    if laws is None:
        return {}
    drawn = [probs for probs in laws.probs if probs is not None]
    width = 1 if laws.ids is None else len(laws.ids)
    probs = torch.cat(drawn) if drawn else torch.zeros(1, width)
    rows: list[npt.NDArray[np.int32]] = []
    first = 0
    for tree, law in zip(batch.trees, laws.probs, strict=True):
        assert tree is not None
        own = tree.parents if tree.draft_rows is None else tree.draft_rows
        rows.append(first + own.clip(0))
        first += 0 if law is None else len(law)
    device = batch.tokens.device
    packed = torch.from_numpy(np.concatenate(rows)).to(device).clamp(max=len(probs) - 1)
    ids = None if laws.ids is None else laws.ids.to(device)
    return {"draft_probs": probs.to(device), "draft_rows": packed, "draft_ids": ids}


def penalise_repetition(
    logits: Tensor, batch: TreeBatch, requests: Sequence[Request], penalty: float
) -> Tensor:
    """Divide positive, multiply negative logits of tokens already seen by `penalty`.

    Node i's row has seen the request's tokens and those on its own path, so that a tree gives each
    node the logits plain decoding would. Returns a copy; logits: [N, V].
    """
    logits = logits.clone()
    first_row = 0
    for request, tree in zip(requests, batch.trees, strict=True):
        assert tree is not None
        rows = logits[first_row : first_row + len(tree)]
        seen = set(request.tokens)
        _penalise(rows, seen, penalty)
        for node in range(1, len(tree)):
            path_tokens = set(tree.tokens[tree.path(node)].tolist())
            _penalise(rows[node : node + 1], path_tokens - seen, penalty)
        first_row += len(tree)
    return logits


def path_logprobs(logits: Tensor, accepted: AcceptedPath, batch: TreeBatch) -> Tensor:
    """Log probability of each emitted token under the raw target law, [B, D + 1] fp32.

    logits: [N, V]. Entries past the emitted tokens hold anything.
    """
    law = path_rows(logits, accepted, batch).float().log_softmax(-1)
    return law.gather(-1, accepted.emitted.clamp(min=0)[..., None])[..., 0]


def path_rows(per_node: Tensor, accepted: AcceptedPath, batch: TreeBatch) -> Tensor:
    """Of `per_node` [N, ...] the rows of each accepted path, root first: [B, D + 1, ...].

    Entries past the end of a path hold anything.
    """
    return per_node[batch.node_indptr[:-1, None] + accepted.path.clamp(min=0)]


def _penalise(rows: Tensor, tokens: set[int], penalty: float) -> None:
    """Penalise `tokens` in `rows` [n, V], in place; ids outside the vocabulary are padding."""
    ids = [token for token in tokens if 0 <= token < rows.shape[1]]
    values = rows[:, ids]
    rows[:, ids] = torch.where(values > 0, values / penalty, values * penalty)
