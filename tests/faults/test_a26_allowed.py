# SPDX-License-Identifier: Apache-2.0
"""A26: a grammar mask per node; what it excludes is never accepted, emitted or even looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, allowed_mask, plan_of
from torch import Tensor
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

VOCAB, EOS = 40, 39
RULES: list[dict[str, Any]] = [
    {"rule": "greedy"},
    {"rule": "target", "uniforms": torch.zeros(6, 2)},
    {"rule": "target", "seeds": 9, "top_p": 0.9},
]
# Request 0: root -> {5, 3}, the mask allows 3 only, then EOS; request 1: root -> 7.
PLAN = plan_of([[-1, 0, 0], [-1, 0, 0]])
TOKENS = torch.tensor([0, 5, 3, 0, 7, 8])
MASK: list[list[int] | None] = [[3], None, [EOS], None, None, None]


def problem() -> Tensor:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[0, 5] = 50.0  # the argmax before the mask
    logits[3, 7] = 50.0
    logits[4, 1] = 50.0
    return logits


def run(logits: Tensor, mask: list[list[int] | None], options: dict[str, Any]) -> AcceptedPath:
    return accept_path(logits, TOKENS, PLAN, allowed=allowed_mask(mask, VOCAB), **options)


@pytest.mark.parametrize("options", RULES, ids=["greedy", "uniform_0", "filtered"])
def test_only_allowed_tokens(options: dict[str, Any]) -> None:
    got = run(problem(), MASK, options)
    assert got.path[0].tolist() == [0, 2]
    assert got.emitted[0].tolist() == [3, EOS]


@pytest.mark.parametrize("options", RULES, ids=["greedy", "uniform_0", "filtered"])
def test_nothing_left(options: dict[str, Any]) -> None:
    clean = run(problem(), MASK, options)
    got = run(problem(), [[], *MASK[1:]], options)
    assert got.status.tolist() == [2, 0]
    assert got.path[0].tolist() == [0, -1]
    assert got.emitted[0].tolist() == [-1, -1]
    masked_out = problem()
    masked_out[0, 3] = -torch.inf  # the only allowed id has no probability
    for other in (got, run(masked_out, MASK, options)):
        assert other.status.tolist() == [2, 0]
        for name in INTEGER_FIELDS:
            assert torch.equal(getattr(other, name)[1], getattr(clean, name)[1])


@pytest.mark.parametrize("options", RULES, ids=["greedy", "uniform_0", "filtered"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_excluded_ids_are_not_looked_at(options: dict[str, Any], bad: float) -> None:
    logits = problem()
    logits[0] = bad
    logits[0, 3] = -4.0
    got = run(logits, MASK, options)
    assert got.status.tolist() == [0, 0]
    assert got.emitted[0].tolist() == [3, EOS]


@pytest.mark.parametrize("options", RULES, ids=["greedy", "uniform_0", "filtered"])
def test_a_mask_off_the_path_has_no_effect(options: dict[str, Any]) -> None:
    clean = run(problem(), MASK, options)
    mask = list(MASK)
    mask[1] = mask[5] = []
    got = run(problem(), mask, options)
    for name in INTEGER_FIELDS:
        assert torch.equal(getattr(got, name), getattr(clean, name))
