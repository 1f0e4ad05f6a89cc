# SPDX-License-Identifier: Apache-2.0
"""Replays: what was recorded, decoded again at any cost; by hand, and against tables of chances."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import random_parents
from treeattn.cost import expected_tokens, path_probs
from treeattn.cost_file import CostTables
from treeattn.schedule import Fixed, Online, Policy, Verdict
from treeattn.schedule.recording import Recording, imagined, load_recordings, save_recordings
from treeattn.schedule.replay import Replayed, replay
from treeattn.tree import DraftTree

FREE = CostTables(verify=((10_000, 10_000, 1.0),))
COSTS = CostTables(
    verify=((1, 100, 10.0), (2, 100, 10.5), (4, 100, 12.0), (8, 100, 20.0)),
    draft=((1, 1, 1.0), (1, 2, 1.5), (2, 1, 2.0), (2, 2, 2.75)),
    accept=((4, 0.25), (8, 0.5)),
    remap=((8, 0.125),),
)


def tree(parents: Sequence[int], tokens: Sequence[int], chances: Sequence[float]) -> DraftTree:
    return DraftTree(tokens, parents, np.log(chances))


# At the root before 5 the best child is wrong and the other right; before 7 both of a chain are
# right; before 8 there is no draft; before 9 one node is right, of which the last token needs none.
BY_HAND = Recording(
    "by hand",
    context=20,
    tokens=(5, 6, 7, 8, 9, 10),
    drafts=(
        tree([-1, 0, 0, 2], [4, 1, 5, 6], [1.0, 0.6, 0.3, 0.2]),
        tree([-1, 0], [5, 9], [1.0, 0.1]),
        tree([-1, 0, 1], [6, 7, 8], [1.0, 0.5, 0.4]),
        None,
        tree([-1, 0, 1], [8, 9, 10], [1.0, 0.5, 0.4]),
        tree([-1, 0], [9, 10], [1.0, 0.5]),
    ),
)


def test_a_tree_by_hand() -> None:
    """Steps at 5 (accepts 5, 6; emits 7), at 8 (no draft) and at 9 (accepts 9; 10 is the last)."""
    found = replay([BY_HAND], Fixed(4), COSTS)
    assert (found.tokens, found.steps, found.accepted) == (6, 3, 3)
    assert found.rows == 4 + 1 + 2
    # The levels of the first draft: below the root, below nodes 1 and 2. The second was asked.
    assert found.ms == pytest.approx(
        {
            "draft": (1.0 + 2.75) + 1.0 + 1.0,
            "verify": 12.0 + 10.0 + 10.5,
            "accept": 3 * 0.25,
            "remap": 3 * 0.125,
        }
    )
    assert found.total_ms == pytest.approx(5.75 + 32.5 + 0.75 + 0.375)
    assert found.tokens_per_second == pytest.approx(6000 / 39.375)


def test_a_chain_by_hand() -> None:
    """The likeliest path misses at 5 and 6, then holds 7 and 8."""
    found = replay([BY_HAND], Fixed(4, "chain"), COSTS)
    assert (found.tokens, found.steps, found.accepted) == (6, 4, 2)
    assert found.rows == 2 + 2 + 3 + 1
    assert found.ms["draft"] == pytest.approx(1.0 + 1.0 + (1.0 + 2.0) + 1.0)
    assert found.ms["verify"] == pytest.approx(10.5 + 10.5 + 12.0 + 10.0)


def test_a_smaller_budget_keeps_the_likeliest() -> None:
    """Before 5 both children, without 6 below the right one; then, before 7, a chain that holds."""
    found = replay([BY_HAND], Fixed(3), COSTS)
    assert (found.steps, found.accepted, found.rows) == (3, 1 + 2, 3 + 3 + 1)
    found = replay([BY_HAND], Fixed(2), COSTS)  # before 5 the wrong child only
    assert (found.steps, found.accepted, found.rows) == (4, 0 + 0 + 1 + 1, 2 + 2 + 2 + 2)


def test_two_at_a_time() -> None:
    """The second request's steps go along with the first's; then the third takes its place."""
    short = Recording("short", 10, (5, 6), (None, None))
    third = Recording("third", 50, (1, 2, 3), (tree([-1, 0, 1], [0, 1, 2], [1, 0.9, 0.8]),) * 3)
    found = replay([BY_HAND, short, third], Fixed(4), COSTS, batch_size=2)
    assert found.tokens == 6 + 2 + 3
    assert found.steps == 3 + 2 + 1
    # (4 + 1), (1 + 1), then at 9 with the third: (2 + 3)
    assert found.rows == 5 + 2 + 5
    assert found.ms["verify"] == pytest.approx(20.0 + 10.5 + 20.0)
    assert found.ms["accept"] == pytest.approx(0.5 + 0.25 + 0.5)
    # Roots of both, then nodes 1 and 2; both roots; both roots, then one node of the third.
    assert found.ms["draft"] == pytest.approx((1.5 + 2.75) + 1.5 + (1.5 + 2.75))


def random_recording(rng: random.Random, most: int = 12) -> Recording:
    """Drafts of any shape, right or wrong, with and without scores; some miss."""
    tokens = tuple(rng.randrange(3) for _ in range(rng.randint(0, most)))
    drafts: list[DraftTree | None] = []
    for at in range(len(tokens)):
        parents = random_parents(rng, rng.randint(1, 9))
        own, scores = [-1], [0.0]
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
            truth = tokens[at + depths[-1] - 1] if at + depths[-1] <= len(tokens) else 0
            own.append(truth if rng.random() < 0.7 else rng.randrange(3))
            scores.append(scores[parent] + rng.choice([0.0, -0.3, -2.0]))
        known = scores if rng.random() < 0.7 else None
        drafts.append(None if rng.random() < 0.1 else DraftTree(own, parents, known))
    return Recording("random", rng.randrange(50), tokens, tuple(drafts))


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**9), batch_size=st.integers(1, 4))
def test_every_token_is_emitted_once(seed: int, batch_size: int) -> None:
    rng = random.Random(seed)
    recordings = [random_recording(rng) for _ in range(rng.randint(0, 6))]
    num_tokens = sum(len(recording.tokens) for recording in recordings)
    rows = tuple((2**i, 100.0, rng.uniform(1, 3) * 1.5**i) for i in range(7))
    verdict = Verdict(rng.choice(["tree", "chain", "off"]), rng.randint(1, 9), 0.3, 1.0, 1.5)
    policy = Policy({1: verdict}, CostTables(verify=rows), "suffix")
    for schedule in (
        Fixed(rng.randint(1, 9), rng.choice(["tree", "chain"])),
        Online(policy, max_rows=40),
    ):
        found = replay(recordings, schedule, policy.costs, batch_size=batch_size)
        assert found.tokens == num_tokens
        assert found.tokens == found.steps + found.accepted
        assert found.rows >= found.steps
        assert found.total_ms > 0 or num_tokens == 0
        if isinstance(schedule, Online):
            assert not schedule._known  # every request was released
        if verdict.shape == "off" and isinstance(schedule, Online):
            assert found.steps == found.rows == num_tokens


@pytest.mark.parametrize("batch_size", [1, 3])
def test_plain_decoding_takes_a_step_per_token(batch_size: int) -> None:
    rng = random.Random(1)
    recordings = [random_recording(rng, most=20) for _ in range(7)]
    num_tokens = sum(len(recording.tokens) for recording in recordings)
    found = replay(recordings, Fixed(1), FREE, batch_size=batch_size)
    assert found.tokens == found.steps == found.rows == num_tokens > 30
    assert found.accepted == 0


def test_plain_decoding_pays_no_drafter() -> None:
    """A budget of the root alone leaves nothing to ask for."""
    found = replay([BY_HAND], Fixed(1), COSTS)
    assert found.ms == pytest.approx({"draft": 0, "verify": 60, "accept": 1.5, "remap": 0.75})


def test_nothing_to_replay() -> None:
    empty = Recording("", 3, (), ())
    for recordings in ([], [empty]):
        found = replay(recordings, Fixed(4), COSTS, batch_size=2)
        assert found == Replayed()
        assert found.tokens_per_second == 0.0


def test_a_large_chain_of_the_right_tokens() -> None:
    """Of a drafter that is always right all steps but the last emit a token per node."""
    tokens = tuple(range(10))
    drafts = tuple(DraftTree.chain([t - 1, *tokens[t : t + 3]]) for t in tokens)
    for shape in ("tree", "chain"):
        found = replay([Recording("", 0, tokens, drafts)], Fixed(4, shape), FREE)
        assert (found.steps, found.accepted) == (3, 7)
        assert replay([Recording("", 0, tokens, drafts)], Fixed(3, shape), FREE).steps == 4


def test_contexts() -> None:
    """The longest of the batch counts; above all that was measured it costs what that did."""
    costs = CostTables(verify=((2, 10, 1.0), (2, 20, 2.0)))
    near, far = (Recording("", context, (1, 2), (None, None)) for context in (4, 10))
    assert replay([near], Fixed(1), costs).ms["verify"] == 2.0
    assert replay([far], Fixed(1), costs).ms["verify"] == 3.0  # at 10, then at 11
    assert replay([near, far], Fixed(1), costs, batch_size=2).ms["verify"] == 3.0
    assert replay([Recording("", 99, (1, 2), (None, None))], Fixed(1), costs).ms["verify"] == 4.0


def test_a_step_costs_what_one_of_so_many_requests_does() -> None:
    """Of two requests one ends after a token: two steps follow of the other alone."""
    alone, two = (CostTables(((4, 99, ms),), accept=((4, ms / 8),)) for ms in (1.0, 16.0))
    costs = CostTables(alone.verify, batches={1: alone, 2: two})
    short, long = (Recording("", 0, (1,) * n, (None,) * n) for n in (1, 3))
    found = replay([short, long], Fixed(1), costs, batch_size=2)
    assert found.ms == {"draft": 0.0, "verify": 16.0 + 2 * 1.0, "accept": 2.0 + 2 / 8, "remap": 0.0}


@pytest.mark.parametrize(
    ("phase", "costs"),
    [
        ("verify", CostTables(((1, 99, 1.0),))),
        ("accept", CostTables(FREE.verify, accept=((2, 1.0),))),
        ("remap", CostTables(FREE.verify, remap=((4, math.nan),))),
        ("draft", CostTables(FREE.verify, draft=((1, 1, 1.0),))),
    ],
)
def test_unknown_costs_are_an_error(phase: str, costs: CostTables) -> None:
    with pytest.raises(ValueError, match=f"costs must know {phase} of 4 rows at context 20"):
        replay([BY_HAND], Fixed(4), costs)


# Recordings that are imagined.

TABLE = [[0.6, 0.25, 0.1], [0.5, 0.2], [0.3]]
PARENTS = [-1, 0, 0, 0, 1, 1, 2, 4, 7, 0]
NUM_TOKENS = 20_000


def test_imagined_acceptance_is_the_table_s() -> None:
    """Every node is on the accepted path as often as its chance: within 4.5 standard errors."""
    recording = imagined(TABLE, PARENTS, num_tokens=NUM_TOKENS, context=7, seed=3)
    assert recording.tokens == tuple(range(NUM_TOKENS))
    assert recording.context == 7
    chances = path_probs(PARENTS, TABLE)
    counts = np.zeros(len(PARENTS))
    for t, draft in enumerate(recording.drafts):
        assert draft is not None and draft.scores is not None
        alive = draft.tokens == t + draft.depths - 1
        alive[0] = True
        for parent in set(PARENTS[1:]):  # at most one child of an accepted node, none of others
            assert alive[draft.children(parent)].sum() <= alive[parent]
        counts += alive
    np.testing.assert_allclose(np.exp(draft.scores), chances)
    assert chances[-1] == 0.0 and counts[-1] == 0  # a fourth child, of which the table knows none
    bounds = 4.5 * np.sqrt(chances * (1 - chances) / NUM_TOKENS)
    assert (np.abs(counts / NUM_TOKENS - chances) <= bounds).all()


def test_replayed_acceptance_is_the_table_s() -> None:
    """Tokens per step as `expected_tokens` says. A path's length has a deviation below 1.3."""
    recording = imagined(TABLE, PARENTS, num_tokens=NUM_TOKENS, context=0, seed=4)
    for shape, parents in (("tree", PARENTS), ("chain", [-1, 0, 1, 2, 3])):
        found = replay([recording], Fixed(99, shape), FREE)
        expected = expected_tokens(parents, TABLE)
        bound = 4.5 * 1.3 / math.sqrt(found.steps)
        assert abs(found.tokens / found.steps - expected) < bound < 0.1


def test_a_tree_accepts_more_than_its_chain() -> None:
    recording = imagined(TABLE, PARENTS, num_tokens=2000, context=0, seed=0)
    steps = [
        replay([recording], Fixed(nodes, shape), FREE).steps
        for nodes, shape in ((1, "tree"), (5, "chain"), (5, "tree"), (9, "tree"))
    ]
    assert steps[0] == 2000
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 4


def test_seeds() -> None:
    first, same, other = (
        imagined(TABLE, PARENTS, num_tokens=50, context=0, seed=seed) for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0.5], [0.7, 0.4]], r"acceptance\[1\] must sum to at most 1, got 1.1"),
        ([[0.5, -0.1]], r"acceptance\[0\]\[1\] must be in \[0, 1\], got -0.1"),
    ],
)
def test_tables_that_are_none(table: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imagined(table, [-1, 0], num_tokens=1, context=0, seed=0)


def test_certain_and_impossible() -> None:
    certain = imagined([[0.7, 0.3]], [-1, 0, 0], num_tokens=500, context=0, seed=0)
    assert replay([certain], Fixed(3), FREE).steps == 250
    for table in ([[0.0]], [[]], []):
        never = imagined(table, [-1, 0, 1], num_tokens=20, context=0, seed=0)
        assert replay([never], Fixed(3), FREE).steps == 20


# Files.


def test_recordings_come_back(tmp_path: Path) -> None:
    """Scores to five decimals."""
    path = tmp_path / "runs.jsonl"
    unscored = Recording("no \u2028 scores", 0, (1,), (DraftTree([0, 1, 1], [-1, 0, 0]),))
    never = Recording("never", 0, (1,), (DraftTree([0, 1], [-1, 0], [0.0, -math.inf]),))
    saved = [BY_HAND, unscored, never, Recording("empty", 2, (), ())]
    save_recordings(path, saved, {"model": "tiny", "seed": 0})
    found = load_recordings(path)
    assert found[1:] == saved[1:]
    assert (found[0].name, found[0].context, found[0].tokens) == ("by hand", 20, BY_HAND.tokens)
    for loaded, original in zip(found[0].drafts, BY_HAND.drafts, strict=True):
        if original is None:
            assert loaded is None
            continue
        assert loaded is not None
        np.testing.assert_allclose(loaded.scores, original.scores, atol=0.5e-5)
        assert loaded == DraftTree(original.tokens, original.parents, loaded.scores)
    assert replay(found[:1], Fixed(4), COSTS) == replay([BY_HAND], Fixed(4), COSTS)
    header = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert header == {"treeattn_recording": 1, "about": {"model": "tiny", "seed": 0}}


GOOD = {"name": "", "context": 0, "tokens": [1], "drafts": [None]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "treeattn_recording must be 1 in the first line: None"),
        ([{"treeattn_recording": 2}], "treeattn_recording must be 1 in the first line"),
        ([["x"]], "treeattn_recording must be 1 in the first line"),
        ([{"treeattn_recording": 1}, {**GOOD, "drafts": []}], "drafts must have an entry per tok"),
        ([{"treeattn_recording": 1}, {"name": ""}], "drafts"),
        (
            [{"treeattn_recording": 1}, {**GOOD, "drafts": [{"tokens": [1], "parents": [0]}]}],
            r"parents\[0\] must be -1",
        ),
    ],
    ids=["empty", "version", "list", "short", "missing", "no_tree"],
)
def test_bad_files_are_named(lines: list[Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with pytest.raises(FileNotFoundError):
        load_recordings(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=f"recording {path}: .*{message}"):
        load_recordings(path)


def test_a_draft_per_token() -> None:
    with pytest.raises(ValueError, match="drafts must have an entry per token, 2, got 1"):
        Recording("", 0, (1, 2), (None,))
