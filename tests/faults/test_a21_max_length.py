# SPDX-License-Identifier: Apache-2.0
"""A21: nothing is emitted or cached past the maximum length or the budget."""

from __future__ import annotations

import pytest
import torch
from support.tiny import Scripted, plain, tiny_decoder
from treeattn.decoder import Decoder, Generation, Request
from treeattn.decoder.model import Model
from treeattn.plan import TreePlan
from treeattn.tree import DraftTree

MAX_LEN = 16


def generate(
    num_prompt: int, *, draft_depth: int = 5, budget: int = 32
) -> tuple[Decoder, Generation, list[int]]:
    """Decode behind a prompt of `num_prompt` tokens with a draft that is always right."""
    prompt = [3 * i % 64 for i in range(num_prompt)]
    truth = plain(tiny_decoder(), prompt, 40)
    decoder = tiny_decoder(max_position=MAX_LEN, num_blocks=8)

    def draft(request: Request) -> DraftTree:
        done = len(request.output)
        return DraftTree.chain([request.tokens[-1], *truth[done : done + draft_depth]])

    (out,) = decoder.generate([prompt], max_new_tokens=budget, drafter=Scripted(draft))
    return decoder, out, truth


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions of all nodes that any forward pass sees."""
    seen: list[int] = []
    forward = Model.forward

    def spy(model: Model, tokens: torch.Tensor, plan: TreePlan, *args: object, **kw: object):  # type: ignore[no-untyped-def]
        seen.extend(plan.positions.tolist())
        return forward(model, tokens, plan, *args, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "forward", spy)
    return seen


def test_room_for_two(positions: list[int]) -> None:
    """The root at position 13: tokens at 14 and 15 fit, and no more."""
    decoder, out, truth = generate(14)
    assert out.tokens == truth[:2]
    assert out.finish_reason == "length"
    assert max(positions[-3:]) < MAX_LEN
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == decoder._cache.num_blocks


def test_no_room() -> None:
    _, out, _ = generate(16)
    assert out.tokens == []
    assert out.finish_reason == "length"
    assert out.stats.steps == 0


def test_budget_of_one() -> None:
    _, out, truth = generate(4, draft_depth=4, budget=1)
    assert out.tokens == truth[:1]
    assert out.finish_reason == "length"


def test_only_the_deep_branch_is_cut() -> None:
    prompt = [3 * i % 64 for i in range(13)]  # the root at position 12: three tokens fit
    truth = plain(tiny_decoder(), prompt, 8)
    wrong = (truth[0] + 1) % 64
    tree = DraftTree([prompt[-1], wrong, truth[0], wrong, wrong, wrong], [-1, 0, 0, 1, 3, 4])
    decoder = tiny_decoder(max_position=MAX_LEN)
    drafter = Scripted(lambda request: None if request.output else tree)
    (out,) = decoder.generate([prompt], max_new_tokens=32, drafter=drafter)
    assert out.tokens == truth[:3]
    assert out.stats.drafted == 3  # depths 1, 1, 2
    assert out.stats.accepted == [1, 0]


def test_prompt_too_long() -> None:
    decoder = tiny_decoder(max_position=MAX_LEN)
    with pytest.raises(ValueError, match=r"prompts\[0\] must have 1 to 16 tokens, got 17"):
        decoder.generate([[1] * 17], max_new_tokens=1)
