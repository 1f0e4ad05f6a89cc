# SPDX-License-Identifier: Apache-2.0
"""A06 for the rules that try children: coins are compared strictly, and 0 accepts nothing alone."""

from __future__ import annotations

import pytest
import torch
from support.acceptance import one_hot_logits, plan_of
from support.rules import CALLS, WITH_DRAFTS
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

BELOW_ONE = 1 - 2.0**-24
COINS = [0.0, 2**-24, 0.5, BELOW_ONE]


def try_one(
    name: str, logits: torch.Tensor, token: int, draft: list[float], coin: float, **filters: float
) -> AcceptedPath:
    """A root and one child, tried with the coin; the draw is at 0."""
    return accept_path(
        logits,
        torch.tensor([0, token]),
        plan_of([[-1, 0]]),
        draft_probs=torch.tensor([draft, draft]),
        uniforms=torch.tensor([[0.0, 0.0], [coin, 0.0]]),
        **CALLS[name],
        **filters,
    )


@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize("top_p", [1.0, 0.5])
@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_a_token_without_target_mass_falls_to_no_coin(name: str, top_p: float, coin: float) -> None:
    got = try_one(name, one_hot_logits([1, 1], 4), 2, [0.25] * 4, coin, top_p=top_p)
    assert got.emitted.tolist() == [[1, -1]]


@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_a_token_without_draft_mass_is_no_trial(name: str, coin: float) -> None:
    got = try_one(name, torch.zeros(2, 4), 2, [0.5, 0.5, 0.0, 0.0], coin)
    assert got.emitted.tolist() == [[0, -1]]  # the residual is the target itself


@pytest.mark.parametrize("coin", COINS)
@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_a_token_with_more_target_than_draft_passes_every_coin(name: str, coin: float) -> None:
    logits = torch.tensor([[0.0, 0.0, 2.0, 0.0]] * 2)
    assert try_one(name, logits, 2, [0.25] * 4, coin).num_accepted.tolist() == [1]


@pytest.mark.parametrize(
    ("coin", "accepted"), [(0.25, 0), (0.25 + 2**-25, 0), (0.25 - 2**-26, 1), (0.0, 1)]
)
@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_the_boundary_rejects(name: str, coin: float, accepted: int) -> None:
    """Target [1/4, 1/4, 1/4, 1/4], child token 0 from a one-hot draft."""
    got = try_one(name, torch.zeros(2, 4), 0, [1.0, 0.0, 0.0, 0.0], coin)
    assert got.num_accepted.tolist() == [accepted]
    assert got.emitted[0, 0] == (0 if accepted else 1)  # the residual has no token 0
