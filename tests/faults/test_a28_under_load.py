# SPDX-License-Identifier: Apache-2.0
"""A28: a fixed tree is slower than plain decoding under load; measured costs must switch it off."""

from __future__ import annotations

import math

import pytest
from treeattn import cost
from treeattn.schedule import choose, choose_batch
from treeattn.tree import DraftTree

PARENTS = [-1, 0, 1, 2]  # a chain, three levels of drafting
ACCEPTANCE = [[0.7]]
# batch: verify ms by nodes per request, draft ms per level, and the answer
ALONE = ({1: 10.0, 4: 10.4}, 0.5, 4)
LOADED = ({1: 12.0, 4: 40.0}, 1.0, 1)


def test_the_rates_of_the_page() -> None:
    tokens = cost.expected_tokens(PARENTS, ACCEPTANCE)
    assert tokens == pytest.approx(2.533)
    assert tokens / (10.4 + 3 * 0.5) == pytest.approx(0.213, abs=5e-4)
    assert tokens / (40.0 + 3 * 1.0) == pytest.approx(0.0589, abs=5e-5)
    assert pytest.approx(0.0833, abs=5e-5) == 1 / 12.0


@pytest.mark.parametrize(
    ("verify_ms", "draft_ms", "answer"), [ALONE, LOADED], ids=["batch_1", "batch_64"]
)
def test_choose(verify_ms: dict[int, float], draft_ms: float, answer: int) -> None:
    values = {1: 1.0, 4: cost.expected_tokens(PARENTS, ACCEPTANCE)}
    depths = {1: 0, 4: 3}
    assert choose(values, verify_ms, draft_ms_per_level=draft_ms, depths=depths) == answer


@pytest.mark.parametrize(
    ("batch_size", "verify_ms", "draft_ms", "answer"),
    [(1, *ALONE), (64, *LOADED)],
    ids=["batch_1", "batch_64"],
)
def test_the_whole_batch(
    batch_size: int, verify_ms: dict[int, float], draft_ms: float, answer: int
) -> None:
    """The same numbers as tables of the batch's rows."""
    scores = [math.log(prob) for prob in cost.path_probs(PARENTS, ACCEPTANCE)]
    tree = DraftTree([0] * 4, PARENTS, scores)
    costs = cost.StepCosts(
        verify=cost.Staircase({(batch_size * n, 1): ms for n, ms in verify_ms.items()}),
        draft=cost.Staircase({(level, batch_size): draft_ms for level in (1, 2, 3)}),
    )
    plan = choose_batch([tree] * batch_size, costs, context=1)
    assert [len(tree) for tree in plan.trees if tree is not None] == [answer] * batch_size
    assert plan.rows == batch_size * answer
    rates = {n: (2.533 if n == 4 else 1.0) * batch_size for n in (1, 4)}
    assert plan.tokens == pytest.approx(rates[answer])
    assert plan.ms == pytest.approx(verify_ms[answer] + draft_ms * plan.depth)
