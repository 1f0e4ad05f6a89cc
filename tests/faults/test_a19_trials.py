# SPDX-License-Identifier: Apache-2.0
"""A19 for the rules that try children: temperature 0 is argmax for its row, whatever the drafts."""

from __future__ import annotations

import random

import pytest
import torch
from support.acceptance import INTEGER_FIELDS, plan_of
from support.rules import CALLS, WITH_DRAFTS, problem, shape
from treeattn.ops import accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.parametrize("name", CALLS)
def test_greedy_rows_beside_sampling_rows(name: str) -> None:
    """Alone or in a batch, with NaN for drafts and filters that would change a draw."""
    rng = random.Random(name)
    for seed in range(10):
        trees = [shape(rng, name, 6) for _ in range(4)]
        plan = plan_of(trees)
        x = problem(rng, name, trees)
        x["logits"] = x["logits"].round()  # ties
        greedy = accept_path(x["logits"], x["tokens"], plan)
        if name in WITH_DRAFTS:
            x["draft_probs"][:6] = x["draft_probs"][12:18] = torch.nan
        got = accept_path(
            **x, plan=plan, seeds=seed, top_k=3, top_p=0.5,
            temperature=torch.tensor([0.0, 1.0, 0.0, 1e-6]), **CALLS[name],
        )  # fmt: skip
        assert got.status.tolist() == [0, 0, 0, 0]
        for field in INTEGER_FIELDS:
            for b in (0, 2):
                assert torch.equal(getattr(got, field)[b], getattr(greedy, field)[b])


@pytest.mark.parametrize("name", CALLS)
def test_neither_seeds_nor_drafts_are_needed(name: str) -> None:
    logits, tokens = torch.tensor([[3.0, 3.0, 1.0]] * 2), torch.tensor([2, 0])
    got = accept_path(logits, tokens, plan_of([[-1, 0]]), temperature=0.0, **CALLS[name])
    assert got.emitted.tolist() == [[0, 0]]
