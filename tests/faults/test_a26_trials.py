# SPDX-License-Identifier: Apache-2.0
"""A26 for the rules that try children: a grammar mask per node."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, allowed_mask, plan_of
from support.rules import CALLS, WITH_DRAFTS
from torch import Tensor
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

VOCAB, EOS = 40, 39
MASK: list[list[int] | None] = [[3], [EOS], None]
# The draft's favourite is not allowed; what is allowed was drafted too, with chance 1/2.
TREE, TOKENS = [-1, 0], torch.tensor([0, 3])


def run(name: str, logits: Tensor, mask: list[list[int] | None], tokens: Tensor) -> AcceptedPath:
    options: dict[str, Any] = {}
    if name in WITH_DRAFTS:
        draft = torch.zeros(2, VOCAB)
        draft[:, [3, 5]] = 0.5
        options["draft_probs"] = draft
    return accept_path(
        logits, tokens, plan_of([TREE]), allowed=allowed_mask(mask[:2], VOCAB),
        uniforms=torch.zeros(2, 2), **CALLS[name], **options,
    )  # fmt: skip


def problem() -> Tensor:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[0, 5] = 50.0  # the argmax before the mask
    return logits


@pytest.mark.parametrize("name", CALLS)
def test_only_allowed_tokens(name: str) -> None:
    assert run(name, problem(), MASK, TOKENS).emitted.tolist() == [[3, EOS]]
    excluded = run(name, problem(), MASK, torch.tensor([0, 5]))  # coin 0 does not help it
    assert excluded.emitted.tolist() == [[3, -1]]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_excluded_ids_are_not_looked_at(name: str, bad: float) -> None:
    logits = problem()
    logits[0] = bad
    logits[0, 3] = -4.0
    assert run(name, logits, MASK, TOKENS).emitted.tolist() == [[3, EOS]]


@pytest.mark.parametrize("name", CALLS)
def test_nothing_left(name: str) -> None:
    got = run(name, problem(), [[], None], TOKENS)
    assert got.status.tolist() == [2]
    assert got.path.tolist() == [[0, -1]]
    assert got.emitted.tolist() == [[-1, -1]]


@pytest.mark.parametrize("name", CALLS)
def test_a_mask_off_the_path_has_no_effect(name: str) -> None:
    logits, tokens = problem(), torch.tensor([0, 5])
    clean = run(name, logits, [[3], None], tokens)
    got = run(name, logits, [[3], []], tokens)
    for field in INTEGER_FIELDS:
        assert torch.equal(getattr(got, field), getattr(clean, field))
