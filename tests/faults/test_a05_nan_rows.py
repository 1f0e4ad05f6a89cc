# SPDX-License-Identifier: Apache-2.0
"""A05: a NaN row is reported, never laundered into a token, and hurts nobody else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, plan_of
from torch import Tensor
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

VOCAB, TREE = 1000, [-1, 0, 0, 1]
RULES = [("greedy", {}), ("target", {"seeds": 7, "top_k": 50, "top_p": 0.9})]


def run(
    logits: Tensor, tokens: Tensor, rule: str, options: dict[str, Any], num_requests: int = 3
) -> AcceptedPath:
    return accept_path(logits, tokens, plan_of([TREE] * num_requests), rule=rule, **options)


def problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, VOCAB, generator=generator)
    tokens = torch.arange(100, 112)
    for start in (0, 4, 8):  # root -> node 1 -> node 3
        logits[start, tokens[start + 1]] = 40.0
        logits[start + 1, tokens[start + 3]] = 40.0
    return logits, tokens


@pytest.mark.parametrize(("rule", "options"), RULES, ids=["greedy", "target"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_bad_root_row(rule: str, options: dict[str, Any], bad: float) -> None:
    logits, tokens = problem()
    clean = run(logits, tokens, rule, options)
    logits[4] = bad
    got = run(logits, tokens, rule, options)
    assert got.status.tolist() == [0, 1, 0]
    assert got.path[1].tolist() == [0, -1, -1]
    assert got.num_accepted.tolist() == [2, 0, 2]
    assert got.next_tokens[1] == -1
    assert got.emitted[1].tolist() == [-1, -1, -1]
    for name in INTEGER_FIELDS:
        for b in (0, 2):
            alone = run(logits[4 * b : 4 * b + 4], tokens[4 * b : 4 * b + 4], rule, options, 1)
            assert torch.equal(getattr(got, name)[b], getattr(clean, name)[b])
            assert torch.equal(getattr(got, name)[b], getattr(alone, name)[0])


@pytest.mark.parametrize(("rule", "options"), RULES, ids=["greedy", "target"])
@pytest.mark.parametrize("place", [0, 511, 512, VOCAB - 1])
def test_one_bad_id_in_mid_walk(rule: str, options: dict[str, Any], place: int) -> None:
    logits, tokens = problem()
    logits[5, place] = torch.nan
    got = run(logits, tokens, rule, options)
    assert got.status.tolist() == [0, 1, 0]
    # What was accepted before stays.
    assert got.path[1].tolist() == [0, 1, -1]
    assert got.num_accepted[1] == 1
    assert got.emitted[1].tolist() == [int(tokens[5]), -1, -1]
    assert got.next_tokens[1] == -1


@pytest.mark.parametrize(("rule", "options"), RULES, ids=["greedy", "target"])
def test_bad_row_off_the_path(rule: str, options: dict[str, Any]) -> None:
    logits, tokens = problem()
    clean = run(logits, tokens, rule, options)
    logits[6] = torch.nan
    got = run(logits, tokens, rule, options)
    for name in INTEGER_FIELDS:
        assert torch.equal(getattr(got, name), getattr(clean, name))


@pytest.mark.parametrize("vocab_size", [1, 15, 17, 511, 513])
def test_a_lane_of_padding_never_wins(vocab_size: int) -> None:
    logits = torch.full((1, vocab_size), -1e30)
    for rule, options in RULES:
        got = accept_path(
            logits, torch.zeros(1).int(), plan_of([[-1]]), rule=rule, **{**options, "top_k": 0}
        )
        assert 0 <= got.next_tokens[0] < vocab_size
        logits_none = torch.full((1, vocab_size), -torch.inf)
        got = accept_path(logits_none, torch.zeros(1).int(), plan_of([[-1]]), rule=rule, **options)
        assert got.status.tolist() == [2]
        assert got.next_tokens.tolist() == [-1]
