# SPDX-License-Identifier: Apache-2.0
"""Online: what is asked of the drafter, and what of its drafts is verified, as costs say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.online import CHEAP_ROWS, Drafting, chain, policy, root, step
from treeattn.cost_file import CostTables
from treeattn.schedule import Fixed, Online, Policy, Verdict

# Who is asked.


def test_off_asks_nobody() -> None:
    online = Online(policy(shape="off", num_nodes=1))
    requests = [Drafting(0), Drafting(1)]
    for _ in range(300):
        asked, trees = step(online, requests, [chain(4)] * 2)
        assert asked == [False, False]
        assert [len(tree) for tree in trees] == [1, 1]
        for request in requests:
            online.observe(request, [5])


def test_a_drafter_that_never_paid_is_not_asked() -> None:
    online = Online(policy(speedup=0.9))
    assert online.ask([Drafting(0)]) == [False]


def test_the_last_token_needs_no_draft() -> None:
    online = Online(policy())
    assert online.ask([Drafting(0, room=1), Drafting(1, room=2)]) == [False, True]


def test_the_budget_is_the_verdict_s() -> None:
    verdicts = {
        1: Verdict("tree", 8, 0.5, 1.5, 2.0),
        4: Verdict("chain", 3, 0.5, 0.9, 1.4),
        16: Verdict("off", 1, 0.0, 0.0, 1.0),
    }
    of_all = Policy(verdicts, CostTables(verify=CHEAP_ROWS), "suffix")
    online = Online(of_all)
    assert online.max_nodes == 8
    assert [online.budget(size) for size in (1, 2, 4)] == [(8, "tree"), (3, "chain"), (3, "chain")]
    asked = [online.ask([Drafting(b) for b in range(size)]) for size in (1, 2, 4, 5, 16, 99)]
    assert [set(ask) for ask in asked] == [{True}] * 3 + [{False}] * 3
    assert Online(of_all, chains_only=True).budget(1) == (8, "chain")


def test_how_many_requests_share_a_step() -> None:
    """A policy cuts what does not fit, so every request that finds a row for its root may join."""
    assert Fixed(16).max_requests(256) == 16 and Fixed(300).max_requests(256) == 1
    assert Online(policy(draft_ms=0.1)).max_requests(256) == 256


# What drafts save.


def test_a_drafter_dearer_than_what_it_saves_gets_another_chance_later() -> None:
    """Drafting takes as long as a token. What it drafts is never right; later it always is."""
    online, request = Online(policy(draft_ms=10.0)), Drafting(0)
    history = []
    for _ in range(400):
        (ask,), _ = step(online, [request], [chain(4)])
        history.append(ask)
        online.observe(request, [99])
    assert history[0]
    off_after = history.index(False)
    assert 1 <= off_after < 30
    assert True in history[off_after:]  # it was asked again,
    assert sum(history[off_after:]) < 0.2 * len(history[off_after:])  # from time to time
    assert "11" not in "".join(str(int(ask)) for ask in history[off_after:])

    # For a 2% part of its time at most: a draft takes what a token does.
    assert sum(history[off_after:]) <= 0.02 * len(history[off_after:]) + 1

    history = []
    for _ in range(400):
        (ask,), _ = step(online, [request], [chain(4)])
        history.append(ask)
        online.observe(request, [1, 2, 3, 99] if ask else [99])
    assert all(history[-300:])


def test_asking_again_changes_nothing() -> None:
    """A step that found no room is taken once more, and asks once more."""
    once, twice = Online(policy(draft_ms=10.0)), Online(policy(draft_ms=10.0))
    request = Drafting(0)
    for _ in range(400):
        (first,) = twice.ask([request])
        (second,), _ = step(twice, [request], [chain(4)])
        (alone,), _ = step(once, [request], [chain(4)])
        assert first == second == alone
        for online in (once, twice):
            online.observe(request, [99])


def test_a_step_is_planned_by_what_so_many_requests_cost() -> None:
    """With two requests a row is dear: nothing of the same drafts is verified."""
    dear = CostTables(tuple((rows, 512, 10.0 * rows) for rows in (1, 2, 4, 8, 16)))
    alone = policy(draft_ms=0.0, rate=0.4)
    costs = replace(alone.costs, batches={1: alone.costs, 2: dear})
    requests, drafts = [Drafting(0), Drafting(1)], [chain(4), chain(4)]
    for tables, sizes in ((alone.costs, [4, 4]), (costs, [1, 1])):
        online = Online(replace(alone, costs=tables))
        assert [len(tree) for tree in step(online, requests, drafts)[1]] == sizes
        assert len(step(online, requests[:1], drafts[:1])[1][0]) == 4


def test_of_more_requests_than_were_timed_nobody_is_asked() -> None:
    alone = policy(draft_ms=0.0)
    online = Online(replace(alone, costs=replace(alone.costs, batches={2: alone.costs})))
    requests = [Drafting(b) for b in range(3)]
    assert step(online, requests[:2], [chain(4)] * 2)[0] == [True] * 2
    asked, trees = step(online, requests, [chain(4)] * 3)
    assert asked == [False] * 3 and [len(tree) for tree in trees] == [1] * 3


def test_drafts_that_cost_nothing_are_always_asked_for() -> None:
    """Neither the drafter's time nor that of the rows."""
    online, request = Online(policy(((256, 1000, 10.0),), draft_ms=0.0)), Drafting(0)
    for _ in range(50):
        (ask,), _ = step(online, [request], [chain(4)])
        assert ask
        online.observe(request, [99])


def test_what_a_draft_saved_by_hand() -> None:
    """A token takes 10 ms, four rows 14; the promise is 10 * 2.5 / 2 and the draft's 2 ms."""
    rows = ((1, 1000, 10.0), (4, 1000, 14.0))
    online, request = Online(policy(rows, draft_ms=2.0)), Drafting(0)
    _, (tree,) = step(online, [request], [chain(4, 0.0)])
    assert len(tree) == 4
    known = online._known[0]
    assert known.saved_ms == pytest.approx(14.5)
    assert known.cost_ms == pytest.approx(4.0)
    online.observe(request, [1, 2, 99])
    assert known.saved_ms == pytest.approx(14.5 + 0.15 * (2 * 10 - 4 - 14.5))


def test_a_draft_of_nothing_saves_and_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked, and without an answer: no time is spent on choosing, what was learned stays, and the
    promise fades."""
    online, request = Online(policy(draft_ms=2.0)), Drafting(0)
    step(online, [request], [chain(4, 0.0)])
    online.observe(request, [1, 2, 99])
    known = online._known[0]
    learned = known.learned.seen.copy()
    before = known.saved_ms
    assert before is not None and learned.any()
    monkeypatch.setattr("treeattn.schedule.online.choose_nodes", None)
    asked, trees = step(online, [request], [root()])
    assert asked == [True] and [len(tree) for tree in trees] == [1] and known.cost_ms == 0.0
    online.observe(request, [5])
    assert (known.learned.seen == learned).all()
    assert known.saved_ms == pytest.approx(0.85 * before)


def test_a_request_that_fails_falls_back_while_its_neighbour_goes_on() -> None:
    online = Online(policy(draft_ms=10.0))
    good, bad = Drafting(0), Drafting(1)
    both, last = 0, []
    for _ in range(60):
        asked, trees = step(online, [good, bad], [chain(4), chain(4)])
        both += all(asked)
        last.append((asked, [len(tree) for tree in trees]))
        online.observe(good, [1, 2, 3, 99] if asked[0] else [99])
        online.observe(bad, [99])
    assert 1 <= both < 15
    assert all(asked[0] and sizes[0] == 4 for asked, sizes in last)
    assert sum(entry == ([True, False], [4, 1]) for entry in last[-30:]) >= 24


def test_rows_without_promise_are_cut_though_both_were_asked() -> None:
    """One drafter's word is known to be worthless; its rows would make the step dearer."""
    rows = ((2, 1000, 10.0), (5, 1000, 11.0), (8, 1000, 18.0))
    online = Online(policy(rows, draft_ms=0.0))
    good, bad = Drafting(0), Drafting(1)
    for _ in range(20):
        asked, trees = step(online, [good, bad], [chain(4), chain(4)])
        online.observe(good, [1, 2, 3, 99])
        online.observe(bad, [99])
    assert asked == [True, True]
    assert [len(tree) for tree in trees] == [4, 1]


def test_release_forgets() -> None:
    online, request = Online(policy(draft_ms=10.0)), Drafting(0)
    for _ in range(30):
        (ask,), _ = step(online, [request], [chain(4)])
        online.observe(request, [99])
    assert not ask
    online.release(request)
    online.release(request)  # unknown by now
    assert online.ask([request]) == [True]
    assert (online._known[0].learned.trust == online.policy.fresh().trust).all()
    online.observe(Drafting(7), [1])  # one that was never asked: nothing to learn


def test_what_is_learned_is_the_request_s_own() -> None:
    online = Online(policy(draft_ms=0.0))
    first, second = Drafting(0), Drafting(1)
    for _ in range(8):
        step(online, [first, second], [chain(4), chain(4)])
        online.observe(first, [1, 2, 3, 99])
        online.observe(second, [99])
    trusts = [online._known[seq].learned.trust[0, 0] for seq in (0, 1)]
    fresh = online.policy.fresh().trust[0, 0]
    assert trusts[0] > fresh > trusts[1]


# What is kept.


def test_the_latency_bound() -> None:
    """Rows are nearly free, but each takes its time; drafting takes 2 ms of the bound."""
    rows = tuple((n, 1000, 10.0 + n) for n in range(1, 65))
    sizes = {}
    for bound in (5.0, 13.0, 15.0, 18.9, 19.0, None):
        online = Online(policy(rows, draft_ms=2.0, max_step_ms=bound, rate=1.0, num_nodes=16))
        _, (tree,) = step(online, [Drafting(0)], [chain(16, -1e-3)])
        sizes[bound] = len(tree)
    assert sizes == {5.0: 1, 13.0: 1, 15.0: 3, 18.9: 6, 19.0: 7, None: 16}


def test_never_past_the_tokens_left() -> None:
    online = Online(policy(rate=1.0))
    _, trees = step(
        online, [Drafting(0, room=3), Drafting(1, room=50)], [chain(8, 0.0), chain(8, 0.0)]
    )
    assert [int(tree.depths.max()) for tree in trees] == [2, 7]


@pytest.mark.parametrize("max_rows", [1, 3, 4, 7, 24])
def test_never_more_rows_than_there_is_room_for(max_rows: int) -> None:
    online = Online(policy(rate=1.0), max_rows)
    _, trees = step(online, [Drafting(b) for b in range(3)], [chain(8, -0.01)] * 3)
    assert sum(map(len, trees)) == max(3, max_rows)


@pytest.mark.parametrize("context", [0, 1, 999, 1000, 1001, 10**6])
def test_contexts_longer_than_measured(context: int) -> None:
    online, request = Online(policy()), Drafting(0, context=context)
    (ask,), (tree,) = step(online, [request], [chain(4)])
    assert ask and len(tree) == 4
    online.observe(request, [1, 99])
    assert math.isfinite(online._known[0].saved_ms)


def test_batches_larger_than_measured_decode_without_drafts() -> None:
    """Nobody knows what their steps take; requests that met then start with the promise."""
    online = Online(policy(CHEAP_ROWS[:3]))  # up to 4 rows
    requests = [Drafting(b) for b in range(5)]
    assert step(online, requests[:1], [chain(4)])[0] == [True]
    for _ in range(3):
        asked, trees = step(online, requests, [chain(4)] * 5)
        assert asked == [False] * 5
        assert [len(tree) for tree in trees] == [1] * 5
        for request in requests:
            online.observe(request, [9])
    assert step(online, requests[:2], [chain(2)] * 2)[0] == [True, True]
