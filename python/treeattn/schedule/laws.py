# SPDX-License-Identifier: Apache-2.0
"""A drafter's next-token laws: how schedules ask for them, and what they read from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from treeattn.tree import DraftTree

# The drafter's next-token law at `nodes` of `tree`: [len(nodes), V] log probabilities.
LogProbs: TypeAlias = Callable[[DraftTree, Sequence[int]], Tensor]


def checked(log_probs: Tensor, num_rows: int) -> Tensor:
    """`log_probs` if it is [num_rows, V] without NaN; what lies above 0 becomes 0."""
    if log_probs.dim() != 2 or log_probs.shape[0] != num_rows:
        raise ValueError(
            f"log_probs must return a row per node, [{num_rows}, V], got {list(log_probs.shape)}"
        )
    if log_probs.isnan().any():
        raise ValueError("log_probs must return log probabilities, got nan")
    return log_probs.clamp(max=0.0)


def likeliest(log_probs: Tensor, widths: Sequence[int]) -> list[list[int]]:
    """The `widths[i]` likeliest tokens of row i that have any probability, best first.

    Ties go to the smaller token, which `topk` by itself does not promise.
    """
    rows: list[list[int]] = []
    for law, width in zip(log_probs, widths, strict=True):
        least = law.topk(min(width, len(law))).values[-1:]
        tokens = ((law >= least) & (law > -torch.inf)).nonzero()[:, 0]
        order = law[tokens].sort(descending=True, stable=True).indices[:width]
        rows.append(tokens[order].tolist())
    return rows


def sampled(
    log_probs: Tensor, widths: Sequence[int], generator: torch.Generator
) -> list[list[int]]:
    """`widths[i]` independent draws from row i, in order; none from a row without probability."""
    rows: list[list[int]] = []
    for law, width in zip(log_probs, widths, strict=True):
        uniforms = torch.rand(width, generator=generator, dtype=torch.float64).to(law.device)
        masses = law.double().exp()
        possible = masses.nonzero()[:, 0]
        if len(possible) == 0:
            rows.append([])
            continue
        steps = masses[possible].cumsum(0)
        # A uniform is at most 1 - 2^-53, so its level lies below the last step.
        places = torch.searchsorted(steps, uniforms * steps[-1], right=True)
        rows.append(possible[places].tolist())
    return rows
