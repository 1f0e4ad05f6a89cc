# SPDX-License-Identifier: Apache-2.0
"""A05 for the rules that try children: bad rows of the target and of the draft are reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, plan_of
from support.rules import CALLS, WITH_DRAFTS
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

VOCAB, CHAIN = 1000, [-1, 0, 1]
WHOLE = ("block", "traversal_iid", "traversal_swor")  # accept all of a path or nothing
BAD = pytest.mark.parametrize(
    ("bad", "status"), [(torch.nan, 1), (torch.inf, 1), (-torch.inf, 2)], ids=["nan", "inf", "none"]
)


def problem() -> dict[str, Any]:
    """Three requests; each accepts both nodes of its chain."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, VOCAB, generator=generator)
    tokens = torch.arange(100, 109)
    for start in (0, 3, 6):
        logits[start, tokens[start + 1]] = logits[start + 1, tokens[start + 2]] = 40.0
    return {"logits": logits, "tokens": tokens, "draft_probs": torch.full((9, VOCAB), 1 / VOCAB)}


def run(name: str, x: dict[str, Any], num_requests: int = 3) -> AcceptedPath:
    given = {k: v for k, v in x.items() if k != "draft_probs" or name in WITH_DRAFTS}
    return accept_path(**given, plan=plan_of([CHAIN] * num_requests), seeds=7, **CALLS[name])


def assert_others_untouched(name: str, got: AcceptedPath) -> None:
    clean = problem()
    for field in INTEGER_FIELDS:
        for b in (0, 2):
            rows = slice(3 * b, 3 * b + 3)
            alone = run(name, {key: value[rows] for key, value in clean.items()}, 1)
            assert torch.equal(getattr(got, field)[b], getattr(alone, field)[0])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("row", [0, 1, 2])
@BAD
def test_bad_target_rows(name: str, row: int, bad: float, status: int) -> None:
    x = problem()
    x["logits"][3 + row] = bad
    got = run(name, x)
    stays = 0 if name in WHOLE else row
    assert got.status.tolist() == [0, status, 0]
    assert got.num_accepted.tolist() == [2, stays, 2]
    assert got.path[1].tolist() == [*range(stays + 1), *[-1] * (2 - stays)]
    assert got.emitted[1].tolist() == [104, 105][:stays] + [-1] * (3 - stays)
    assert got.next_tokens[1] == -1
    assert_others_untouched(name, got)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", [0, 511, 512, VOCAB - 1])
def test_one_bad_id(name: str, place: int) -> None:
    x = problem()
    x["logits"][4, place] = torch.nan
    assert run(name, x).status.tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", WITH_DRAFTS)
@pytest.mark.parametrize("place", [0, 511, 512, VOCAB - 1])
@pytest.mark.parametrize("row", [0, 1])
def test_bad_draft_rows(name: str, row: int, place: int) -> None:
    """Wherever the NaN lies: a row is read whole once one of its children is looked at."""
    x = problem()
    x["draft_probs"][3 + row, place] = torch.nan
    got = run(name, x)
    assert got.status.tolist() == [0, 1, 0]
    assert got.num_accepted.tolist() == [2, 0 if name in WHOLE else row, 2]
    assert_others_untouched(name, got)


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_rows_that_nobody_needs(name: str) -> None:
    """The draft row of a leaf; all rows below a child that the target cannot emit."""
    x = problem()
    x["draft_probs"][[2, 5, 8]] = torch.nan
    x["logits"][3, 104] = -torch.inf
    x["logits"][[4, 5]] = torch.nan
    x["draft_probs"][4] = torch.nan
    got = run(name, x)
    assert got.status.tolist() == [0, 0, 0]
    assert got.num_accepted.tolist() == [2, 0, 2]
    assert 0 <= got.next_tokens[1] < VOCAB
    assert_others_untouched(name, got)


@pytest.mark.parametrize("vocab_size", [1, 15, 17, 511, 513])
def test_a_lane_of_padding_never_wins(vocab_size: int) -> None:
    """The residual's last ids too: a draft that takes all but one of them."""
    count = 40
    logits = torch.full((2 * count, vocab_size), -1e30)
    draft = torch.zeros(2 * count, vocab_size)
    draft[:, 0] = 1.0
    uniforms = torch.stack([torch.full((2 * count,), 1 - 2**-24), torch.rand(2 * count)], 1)
    for name in WITH_DRAFTS:
        got = accept_path(
            logits, torch.zeros(2 * count).int(), plan_of([[-1, 0]] * count), draft_probs=draft,
            uniforms=uniforms, **CALLS[name],
        )  # fmt: skip
        assert got.status.eq(0).all()
        assert got.next_tokens.lt(vocab_size).all()
        assert (got.next_tokens > 0).all() or vocab_size == 1
