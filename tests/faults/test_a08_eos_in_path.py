# SPDX-License-Identifier: Apache-2.0
"""A08: an end token inside the accepted path ends the request right there."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.tiny import Scripted, plain, tiny_decoder
from treeattn.decoder import Decoder, Request
from treeattn.tree import DraftTree

PROMPT = [4, 8, 15, 16, 23]


@dataclass(frozen=True)
class Case:
    """`eos` are indices into the true continuation; `kept` tokens of it must come out."""

    name: str
    eos: tuple[int, ...]
    kept: int
    reason: str
    budget: int = 8
    ignore_eos: bool = False
    accepted: int = 0  # draft tokens kept in the first step, which drafts three

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("second draft", eos=(1,), kept=2, reason="stop", accepted=2),
    Case("first draft", eos=(0,), kept=1, reason="stop", accepted=1),
    Case("bonus", eos=(3,), kept=4, reason="stop", accepted=3),
    Case("two end ids", eos=(3, 1), kept=2, reason="stop", accepted=2),
    Case("ignored", eos=(1,), kept=8, reason="length", ignore_eos=True, accepted=3),
    Case("budget before end", eos=(2,), kept=2, reason="length", budget=2, accepted=1),
    Case("budget at end", eos=(1,), kept=2, reason="stop", budget=2, accepted=1),
]


def distinct_truth() -> tuple[Decoder, list[int]]:
    """A model whose first four greedy tokens differ from each other and from the rest."""
    for seed in range(50):
        decoder = tiny_decoder(seed=seed, num_blocks=16)
        truth = plain(decoder, PROMPT, 8)
        if len(set(truth[:4])) == 4 and not set(truth[:4]) & set(truth[4:]):
            return decoder, truth
    raise AssertionError("no seed gives four distinct tokens")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_end_token_in_path(case: Case) -> None:
    decoder, truth = distinct_truth()
    cache = decoder._cache
    assert cache is not None

    def draft(request: Request) -> DraftTree:
        done = len(request.output)
        return DraftTree.chain([request.tokens[-1], *truth[done : done + 3]])

    drafter = Scripted(draft)
    drafter.cache = cache
    (out,) = decoder.generate(
        [PROMPT],
        max_new_tokens=case.budget,
        drafter=drafter,
        eos_ids=[truth[i] for i in case.eos],
        ignore_eos=case.ignore_eos,
    )
    assert out.tokens == truth[: case.kept]
    assert out.finish_reason == case.reason
    assert out.stats.accepted[0] == case.accepted
    # The last token's KV is never committed: it would be the next root.
    assert max(drafter.context_lens) == len(PROMPT) + case.kept - 1
    assert cache.pool.num_free == cache.num_blocks
    cache.pool.check()
