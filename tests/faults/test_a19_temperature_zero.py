# SPDX-License-Identifier: Apache-2.0
"""A19: temperature 0 is argmax for its row, in any company and under any filter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.acceptance import on, plan_of
from treeattn.ops import AcceptedPath, accept_path

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

ROW = [1.0, 1.0, 0.0]
FILTERS: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.5, "top_k": 2}]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_mixed_batch(filters: dict[str, Any]) -> None:
    temperature = torch.tensor([0.0, 1.0, 0.0, 1e-6])
    for seed in range(50):
        batch = accept_path(
            torch.tensor([ROW] * 4),
            torch.zeros(4).int(),
            plan_of([[-1]] * 4),
            rule="target",
            temperature=temperature,
            seeds=torch.arange(4) + 4 * seed,
            **filters,
        )
        assert batch.status.tolist() == [0, 0, 0, 0]
        assert batch.next_tokens[0] == batch.next_tokens[2] == 0
        assert batch.next_tokens[3] in (0, 1)
        alone = accept_path(
            torch.tensor([ROW]),
            torch.zeros(1).int(),
            plan_of([[-1]]),
            rule="target",
            temperature=0.0,
            **filters,
        )
        assert alone.next_tokens.tolist() == [0]


@pytest.mark.parametrize("temperature", [-1.0, float("nan")])
def test_no_temperature_below_zero(temperature: float, machine: str, device: str) -> None:
    def run() -> AcceptedPath:
        return accept_path(
            torch.tensor([ROW], device=device),
            torch.zeros(1, device=device).int(),
            on(device, plan_of([[-1]])),
            rule="target",
            temperature=temperature,
            seeds=1,
        )

    if machine == "cpu":
        with pytest.raises(ValueError, match=r"temperature\[0\] must be at least 0"):
            run()
    else:  # nobody on the host looks at it
        assert run().status.tolist() == [4]


def test_top_k_of_one_is_greedy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 700, generator=generator).round(decimals=1)
    plan, tokens = plan_of([[-1]] * 100), torch.zeros(100).int()
    greedy = accept_path(logits, tokens, plan)
    sampled = accept_path(logits, tokens, plan, rule="target", top_k=1, seeds=torch.arange(100))
    assert torch.equal(greedy.next_tokens, sampled.next_tokens)
