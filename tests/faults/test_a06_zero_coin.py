# SPDX-License-Identifier: Apache-2.0
"""A06: a token without target probability is never accepted, not even by the uniform 0."""

from __future__ import annotations

import pytest
import torch
from support.acceptance import one_hot_logits, plan_of
from treeattn.ops import accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")


def next_after(x: float) -> float:
    return float(torch.nextafter(torch.tensor(x), torch.tensor(1.0)))


@pytest.mark.parametrize("uniform", [0.0, 2**-24, 0.5, 1 - 2**-24])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_zero_probability_child_is_rejected(uniform: float, top_p: float) -> None:
    got = accept_path(
        one_hot_logits([1, 3], 4),
        torch.tensor([0, 2]),
        plan_of([[-1, 0]]),
        rule="target",
        top_p=top_p,
        uniforms=torch.full((2, 2), uniform),
    )
    assert got.path.tolist() == [[0, -1]]
    assert got.next_tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("uniform", "accepted"),
    [(0.25, 0), (next_after(0.25), 0), (0.25 - 2**-26, 1), (0.0, 1)],
)
def test_the_boundary_belongs_to_the_next_id(uniform: float, accepted: int) -> None:
    """Target [1/4, 1/4, 1/4, 1/4], child token 0: strictly below 1/4 accepts."""
    got = accept_path(
        torch.zeros(2, 4),
        torch.tensor([3, 0]),
        plan_of([[-1, 0]]),
        rule="target",
        uniforms=torch.tensor([[0.0, uniform], [0.0, 0.0]]),
    )
    assert got.num_accepted.tolist() == [accepted]
    assert got.emitted[0, 0] == (0 if accepted else 1)
