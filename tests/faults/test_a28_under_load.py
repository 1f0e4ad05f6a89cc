# SPDX-License-Identifier: Apache-2.0
"""A28: a fixed tree is slower than plain decoding under load; measured costs must switch it off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from treeattn import cost
from treeattn.cost_file import CostTables
from treeattn.schedule import Online, Policy, Verdict, choose, choose_batch
from treeattn.schedule.learned import DEPTHS, RANKS
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


@dataclass(eq=False)
class Drafting:
    seq: int
    context: int = 1
    room: int = 99


def policy(loaded: Verdict) -> Policy:
    """The page's numbers as tables of the batch's rows; its drafter is right about itself."""
    counts = [[1e6] * RANKS] * DEPTHS
    tokens = cost.expected_tokens(PARENTS, ACCEPTANCE)
    return Policy(
        {1: Verdict("chain", 4, 3 * ALONE[1], tokens - 1, tokens * 10.0 / 11.9), 64: loaded},
        CostTables(
            verify=(
                *((float(n), 1.0, ms) for n, ms in ALONE[0].items()),
                *((64.0 * n, 1.0, ms) for n, ms in LOADED[0].items()),
            )
        ),
        "any",
        learned={"said": counts, "seen": counts},
    )


OFF = Verdict("off", 1, 0.0, 0.0, 1.0)
# A promise that the tables do not keep.
WRONG = Verdict("chain", 4, 3 * LOADED[1], 1.533, 1.2)


@pytest.mark.parametrize("loaded", [OFF, WRONG], ids=["off", "promised"])
def test_the_online_policy(loaded: Verdict) -> None:
    scores = [math.log(prob) for prob in cost.path_probs(PARENTS, ACCEPTANCE)]
    draft = DraftTree(range(4), PARENTS, scores)
    online = Online(policy(loaded))
    alone = [Drafting(0)]
    assert online.budget(1) == (4, "chain")
    assert online.ask(alone) == [True]
    assert [len(tree) for tree in online.cut(alone, [draft])] == [4]
    online.observe(alone[0], [1, 2, 3, 9])

    batch = [Drafting(seq) for seq in range(1, 65)]
    num_asked = []
    for _ in range(40):
        asked = online.ask(batch)
        trees = [draft if ask else DraftTree.chain([0]) for ask in asked]
        assert [len(tree) for tree in online.cut(batch, trees)] == [1] * 64
        for request in batch:
            online.observe(request, [1])  # as drafted, but nobody verified it
        num_asked.append(sum(asked))
    if loaded is OFF:
        assert num_asked == [0] * 40
    else:
        assert num_asked[0] == 64 and sum(num_asked[-20:]) < 0.25 * 20 * 64
