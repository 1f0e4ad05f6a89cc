# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a level are worth asking the drafter about, and what that is decided from."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from treeattn.cost import chain_cost, chain_tokens
from treeattn.cost_file import CostTables
from treeattn.schedule import Fixed, LearnedAcceptance, Online, Policy, Verdict
from treeattn.schedule.learned import DEPTHS, PRIOR_TRUST, PRIOR_WEIGHT, RANKS
from treeattn.schedule.levels import Frontier, most_saving
from treeattn.tree import DraftTree

MANY = 1e9  # trials, against which no prior counts
PLAIN_MS = 10.0


@dataclass(frozen=True)
class Asking:
    seq: int
    context: int = 10
    room: int = 100


def net_ms(
    chosen: tuple[int, ...], saved: np.ndarray, draft: np.ndarray, verify: np.ndarray
) -> float:
    if len(chosen) == 0:
        return 0.0
    count = min(len(chosen), len(verify) - 1)
    prices = [
        max(verify[more] - verify[0], 0.0) / more
        for more in range(max(1, count), len(verify))
        if math.isfinite(verify[more]) and math.isfinite(verify[0])
    ]
    rows_ms = count * min([*prices, math.inf]) if count > 0 else 0.0
    if not math.isfinite(verify[0]):
        rows_ms = math.inf
    return sum(saved[node] for node in chosen) - draft[len(chosen) - 1] - rows_ms


@pytest.mark.parametrize("seed", range(200))
def test_no_other_choice_saves_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width, more = int(rng.integers(1, 7)), int(rng.integers(0, 9))
    saved = rng.choice([0.0, 0.5, 1.0, 1.0, 3.0], width)
    draft = rng.choice([0.1, 1.0, 2.0, math.inf], width, p=[0.4, 0.3, 0.2, 0.1])
    verify = np.cumsum(rng.choice([0.0, 0.3, 2.0, -0.1], more + 1)) + 10
    verify[rng.random(more + 1) < 0.1] = math.inf
    asked = most_saving(saved, draft, verify)
    choices = [
        choice
        for count in range(width + 1)
        for choice in itertools.combinations(range(width), count)
    ]
    best = max(net_ms(choice, saved, draft, verify) for choice in choices)
    chosen = tuple(np.flatnonzero(asked).tolist())
    assert net_ms(chosen, saved, draft, verify) == pytest.approx(best)
    fewest = min(
        len(choice) for choice in choices if net_ms(choice, saved, draft, verify) >= best - 1e-9
    )
    assert len(chosen) == fewest


def test_rows_share_the_step_of_the_staircase_that_they_open() -> None:
    """The first row beyond the step costs 4 ms, which no single node pays; seven share it."""
    draft = np.array([0.1])
    verify = np.array([10.0, *[14.0] * 7, 30.0])
    assert most_saving(np.array([0.8]), draft, verify).tolist() == [True]
    assert most_saving(np.array([0.6]), draft, verify).tolist() == [False]


def test_rows_that_are_not_measured_are_not_chosen() -> None:
    saved, draft = np.full(3, 9.0), np.full(3, 0.1)
    assert most_saving(saved, draft, np.array([1.0, 1.0, 1.0, math.inf])).sum() == 2
    assert most_saving(saved, draft, np.array([math.inf, 1.0, 1.0, 1.0])).sum() == 0
    assert most_saving(np.full(3, math.inf), draft, np.full(4, math.inf)).sum() == 0


def test_where_rows_end_children_take_those_of_others() -> None:
    draft = np.full(3, 0.1)
    assert most_saving(np.full(3, 9.0), draft, np.array([1.0, 2.0])).sum() == 3
    assert most_saving(np.full(3, 0.3), draft, np.array([1.0, 2.0])).sum() == 0
    assert most_saving(np.full(3, 0.3), draft, np.array([1.0])).sum() == 3


def test_paths_are_the_frontier_and_what_lies_above() -> None:
    tree = DraftTree([9, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 2, 2, 4, 3])
    frontier = Frontier(tree, [5, 4])
    assert frontier.level == 3
    assert frontier.paths() == DraftTree([9, 2, 4, 5], [-1, 0, 1, 1])
    assert Frontier(tree, [0]).paths() == DraftTree([9], [-1])


# What was learned.


def test_chance_counts_the_nodes_whose_children_were_tried() -> None:
    """What has no children is not tried: 2, 3 and 5."""
    tree = DraftTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 1, 4], scores=[0, -1, -2, -2, -3, -4])
    learned = LearnedAcceptance(half_life=math.inf)
    for emitted in ([1, 4, 5, 7], [1, 3, 8], [6], [2, 4]):
        learned.observe(tree, emitted)
    assert learned.tries.tolist() == [4, 2, 1] + [0] * (DEPTHS - 3)
    expected = [(3 + PRIOR_WEIGHT * PRIOR_TRUST) / (4 + PRIOR_WEIGHT)]
    expected += [(tried + PRIOR_WEIGHT * PRIOR_TRUST) / (tried + PRIOR_WEIGHT) for tried in (2, 1)]
    assert learned.chance.tolist() == pytest.approx(expected + [PRIOR_TRUST] * (DEPTHS - 3))


def test_a_prior_gives_the_chances_and_what_is_old_gives_way_to_it() -> None:
    said = np.full((DEPTHS, RANKS), MANY)
    learned = LearnedAcceptance(said, said / 8, np.full(DEPTHS, MANY), half_life=1.0)
    assert learned.chance == pytest.approx(np.full(DEPTHS, RANKS / 8))
    pair = DraftTree([9, 1], [-1, 0], scores=[0, -1])
    learned.observe(pair, [1])
    assert learned.chance[0] == pytest.approx((1 + PRIOR_WEIGHT / 2) / (1 + PRIOR_WEIGHT))
    for _ in range(60):
        learned.observe(DraftTree([9], [-1], scores=[0.0]), [1])
    assert learned.chance == pytest.approx(np.full(DEPTHS, RANKS / 8))
    without = LearnedAcceptance(said, said / 8)
    assert without.chance == pytest.approx(np.full(DEPTHS, 1 / 8))


def test_bad_tries_are_errors() -> None:
    table = np.ones((DEPTHS, RANKS))
    with pytest.raises(ValueError, match=r"tries must be \[8\] counts >= 0, got \[1, 2\]"):
        LearnedAcceptance(table, table, [1, 2])
    with pytest.raises(ValueError, match="tries must be"):
        LearnedAcceptance(table, table, [-1.0] * DEPTHS)
    with pytest.raises(ValueError, match="go together"):
        LearnedAcceptance(tries=[1.0] * DEPTHS)


def test_promise_is_the_path_times_the_chance_below() -> None:
    said = np.full((DEPTHS, RANKS), MANY)
    seen = said * 0.5
    seen[1] *= 0.2
    learned = LearnedAcceptance(said, seen, np.full(DEPTHS, 4 * MANY))
    tree = DraftTree([9, 1, 2, 3], [-1, 0, 0, 2], scores=np.log([1, 0.6, 0.4, 0.3]))
    below_root, below_second = 0.5, 0.1
    expected = [below_root, 0.3 * below_second, 0.2 * below_second, 0.2 * 0.75 * 0.1 * 0.5]
    assert learned.promise(tree, [0, 1, 2, 3]) == pytest.approx(expected)


# The policy.


def online(
    chance: float,
    *,
    draft_ms: float | dict[tuple[int, int], float] | None,
    verify_ms: dict[int, float] | None = None,
    speedup: float = 1.0,
    num_nodes: int = 16,
) -> Online:
    """The drafter is taken at its word, and below every node a child is right with `chance`."""
    if isinstance(draft_ms, float):
        draft_ms = {(99, 99): draft_ms}
    verify = verify_ms or {64: PLAIN_MS}
    counts = np.full((DEPTHS, RANKS), MANY * chance / RANKS).tolist()
    policy = Policy(
        verdicts={1: Verdict("tree", num_nodes, 0.0, 1.0, speedup)},
        costs=CostTables(
            verify=tuple((rows, 100, ms) for rows, ms in verify.items()),
            draft=tuple((*size, ms) for size, ms in (draft_ms or {}).items()),
        ),
        drafter="x",
        learned={"said": counts, "seen": counts, "tries": [MANY] * DEPTHS},
    )
    return Online(policy)


def chain(*probs: float) -> DraftTree:
    scores = np.log(np.cumprod([1.0, *probs]))
    return DraftTree([7] * len(scores), range(-1, len(scores) - 1), scores)


def levels_drafted(schedule: Online, alpha: float, most: int = 60) -> int:
    """Of a chain whose every node is right with probability alpha."""
    request = Asking(0)
    schedule.ask([request])
    for length in range(most):
        frontier = Frontier(chain(*[alpha] * length), [length])
        if schedule.worth([request], [frontier]) == [[False]]:
            return length
    return most


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.6, 0.7, 0.8])
@pytest.mark.parametrize("rho", [0.02, 0.1, 0.2, 0.29])
def test_a_chain_gets_as_many_levels_as_pay(alpha: float, rho: float) -> None:
    """The length at which time per token is least, by the closed form, with a head so cheap that
    verifying more rows is free."""
    best = min(range(60), key=lambda length: chain_cost(alpha, rho, length))
    speedup = 1 / chain_cost(alpha, rho, best)
    schedule = online(alpha, draft_ms=rho * PLAIN_MS, speedup=speedup, num_nodes=64)
    assert levels_drafted(schedule, alpha) == best
    assert chain_tokens(alpha, best) > 1 or best == 0


def test_the_price_of_rows_ends_a_chain_earlier() -> None:
    """0.8^level * 10 ms against 1 ms of drafting; then also against 2 ms per row."""
    assert levels_drafted(online(0.8, draft_ms=1.0), 0.8) == 10
    rows = {count: PLAIN_MS + 2.0 * (count - 1) for count in range(1, 17)}
    assert levels_drafted(online(0.8, draft_ms=1.0, verify_ms=rows), 0.8) == 5


def test_no_level_is_drafted_that_was_not_measured() -> None:
    assert levels_drafted(online(0.9, draft_ms=0.01, verify_ms={5: PLAIN_MS}), 0.9) == 4
    assert levels_drafted(online(0.9, draft_ms={(2, 9): 0.01}), 0.9) == 2


def test_branches_share_the_time_of_their_level() -> None:
    """Alone the second pays no level of 3 ms, below the first it costs nothing more; the third
    would open another step of the drafter's staircase."""
    schedule = online(0.5, draft_ms={(9, 2): 3.0, (9, 4): 4.0})
    request = Asking(0)
    schedule.ask([request])
    tree = DraftTree(range(4), [-1, 0, 0, 0], scores=np.log([1, 0.4, 0.15, 0.15]))
    assert schedule.worth([request], [Frontier(tree, [1, 2, 3])]) == [[False, False, False]]
    tree = DraftTree(range(4), [-1, 0, 0, 0], scores=np.log([1, 0.7, 0.15, 0.15]))
    assert schedule.worth([request], [Frontier(tree, [1, 2, 3])]) == [[True, True, False]]
    assert schedule.worth([request], [Frontier(tree, [2, 3])]) == [[False, False]]
    cheap = online(0.5, draft_ms={(9, 2): 3.0, (9, 4): 3.5})
    cheap.ask([request])
    assert cheap.worth([request], [Frontier(tree, [1, 2, 3])]) == [[True, True, True]]


def test_requests_of_a_batch_are_judged_together() -> None:
    """Both together pay a level that neither does alone; a poor one stops while the other goes on.
    A token costs 5 ms, the step of two requests being 10 ms."""
    schedule = online(0.8, draft_ms=5.0)
    requests = [Asking(0), Asking(1)]
    schedule.ask(requests)
    good, poor = Frontier(chain(0.8), [1]), Frontier(chain(0.01), [1])
    assert schedule.worth(requests, [good, good]) == [[True], [True]]
    assert schedule.worth(requests[:1], [good]) == [[False]]
    schedule = online(0.8, draft_ms={(9, 1): 1.0, (9, 2): 1.5})
    schedule.ask(requests)
    assert schedule.worth(requests, [poor, good]) == [[False], [True]]


def test_without_a_table_of_drafting_everything_is_worth_it() -> None:
    request, poor = Asking(0), Frontier(chain(1e-9), [1])
    for schedule in (Fixed(8), online(0.1, draft_ms=None)):
        schedule.ask([request])
        assert schedule.worth([request], [poor]) == [[True]]
    costly = online(0.1, draft_ms=0.5)
    costly.ask([request])
    assert costly.worth([request], [poor]) == [[False]]
