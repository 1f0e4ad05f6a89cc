# SPDX-License-Identifier: Apache-2.0
"""LearnedAcceptance: how often drafts came true, against how often they were said to."""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import learned as oracle
from support.trees import random_parents
from treeattn.cost import FloatArray, Staircase, StepCosts
from treeattn.schedule import LearnedAcceptance, choose_batch, prune
from treeattn.schedule.learned import (
    DEPTHS,
    HALF_LIFE,
    PRIOR_TRUST,
    PRIOR_WEIGHT,
    RANKS,
)
from treeattn.schedule.recording import imagined
from treeattn.tree import DraftTree

#        0
#      /   \
#     1     2      said: 0.5 and 0.25 of the root's child
#    / \     \
#   3   4     5    said: 0.6 and 0.2 of node 1's, 0.4 of node 2's
TREE = DraftTree(
    [9, 11, 12, 13, 14, 15],
    [-1, 0, 0, 1, 1, 2],
    scores=np.log([1.0, 0.5, 0.25, 0.3, 0.1, 0.1]),
)
UNSCORED = DraftTree(TREE.tokens, TREE.parents)


def table(**cells: float) -> FloatArray:
    """[DEPTHS, RANKS] of zeros but for the cells named, as in d1r0."""
    counts = np.zeros((DEPTHS, RANKS))
    for name, count in cells.items():
        counts[int(name[1]), int(name[3])] = count
    return counts


def random_tree(seed: int, scored: bool, draws: str = "deterministic") -> DraftTree:
    rng = random.Random(seed)
    parents = random_parents(rng, rng.randint(1, 30), branching=rng.choice([0.0, 0.3, 1.0]))
    scores = [0.0]
    for parent in parents[1:]:
        scores.append(scores[parent] + rng.choice([0.0, 0.01, -0.3, -2.0, -900.0, -math.inf]))
    tokens = [rng.randrange(4) for _ in parents]
    return DraftTree(tokens, parents, scores if scored else None, draws)


def random_learned(seed: int) -> LearnedAcceptance:
    """Taught by some trees, not all of which were as good as they said; some were better."""
    rng = random.Random(seed)
    learned = LearnedAcceptance()
    for _ in range(rng.randrange(12)):
        tree = random_tree(rng.randrange(10**6), scored=rng.random() < 0.5)
        node, emitted = 0, []
        while (children := tree.children(node)) and rng.random() < 0.8:
            node = rng.choice(children)
            emitted.append(int(tree.tokens[node]))
        learned.observe(tree, [*emitted, 99])
    return learned


# What an observation counts.


@pytest.mark.parametrize(
    ("emitted", "held", "said", "seen"),
    [
        ([11, 13, 99], 2, {"d0r0": 0.5, "d0r1": 0.25, "d1r0": 0.6, "d1r1": 0.2}, ["d0r0", "d1r0"]),
        ([11, 14], 2, {"d0r0": 0.5, "d0r1": 0.25, "d1r0": 0.6, "d1r1": 0.2}, ["d0r0", "d1r1"]),
        ([11, 15], 1, {"d0r0": 0.5, "d0r1": 0.25, "d1r0": 0.6, "d1r1": 0.2}, ["d0r0"]),
        ([12, 99], 1, {"d0r0": 0.5, "d0r1": 0.25, "d1r0": 0.4}, ["d0r1"]),
        ([13], 0, {"d0r0": 0.5, "d0r1": 0.25}, []),
        ([], 0, {}, []),
    ],
    ids=["deep", "second", "elsewhere", "other", "nothing", "no_step"],
)
def test_said_and_seen(
    emitted: list[int], held: int, said: dict[str, float], seen: list[str]
) -> None:
    learned = LearnedAcceptance()
    assert learned.observe(TREE, emitted) == held
    np.testing.assert_allclose(learned.said, table(**said), atol=1e-15)
    np.testing.assert_array_equal(learned.seen, table(**dict.fromkeys(seen, 1.0)))

    unscored = LearnedAcceptance()
    assert unscored.observe(UNSCORED, emitted) == held
    np.testing.assert_array_equal(unscored.said, table(**dict.fromkeys(said, 1.0)))
    np.testing.assert_array_equal(unscored.seen, learned.seen)


def test_deep_nodes_and_late_siblings_count_as_the_last() -> None:
    chain = DraftTree.chain(range(DEPTHS + 4))
    learned = LearnedAcceptance()
    assert learned.observe(chain, range(1, DEPTHS + 4)) == DEPTHS + 3
    assert learned.seen[:, 0].tolist() == [1.0] * (DEPTHS - 1) + [4.0]
    star = DraftTree([0, *range(1, RANKS + 3)], [-1, *[0] * (RANKS + 2)])
    learned = LearnedAcceptance()
    learned.observe(star, [RANKS + 2])
    assert learned.said[0].tolist() == [1.0] * (RANKS - 1) + [3.0]
    assert learned.seen[0].tolist() == [0.0] * (RANKS - 1) + [1.0]


def test_of_equal_siblings_the_first_is_accepted() -> None:
    learned = LearnedAcceptance()
    assert learned.observe(DraftTree([0, 7, 7], [-1, 0, 0], draws="iid"), [7, 8]) == 1
    assert learned.seen[0, :2].tolist() == [1.0, 0.0]
    assert learned.said[0, :2].tolist() == [1.0, 1.0]


def test_what_was_pruned_teaches_as_much() -> None:
    """The whole draft is observed, though the step verified, and so emitted, less of it."""
    part = prune(TREE, num_nodes=2)
    assert part.tokens.tolist() == [9, 11]
    emitted = [11, 13]  # 13 is the target's own token, and was drafted
    learned = LearnedAcceptance()
    assert learned.observe(TREE, emitted) == 2
    assert learned.seen[1, 0] == 1.0
    ignorant = LearnedAcceptance()
    assert ignorant.observe(part, emitted) == 1
    assert ignorant.said[1].sum() == 0.0


def test_roots_alone_teach_nothing() -> None:
    learned = LearnedAcceptance()
    for tree in (DraftTree([9], [-1]), DraftTree([9], [-1], [0.0]), DraftTree([], [])):
        assert learned.observe(tree, [1]) == 0
        assert learned.said.sum() == learned.seen.sum() == 0.0
        assert len(learned.calibrate(tree)) == len(tree)
    calibrated = learned.calibrate(DraftTree([9], [-1], [-3.0], "swor"))
    assert calibrated == DraftTree([9], [-1], [0.0], "swor")


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), scored=st.booleans())
def test_as_the_oracle_has_it(seed: int, scored: bool) -> None:
    """What a step teaches, and what is made of it, against numpy; random tokens and outcomes."""
    rng, tree = random.Random(seed), random_tree(seed, scored)
    learned, expected = random_learned(seed), random_learned(seed)
    emitted = [rng.randrange(4) for _ in range(rng.randrange(6))]
    learned._keep = 1.0
    assert learned.observe(tree, emitted) == oracle.observe(expected, tree, emitted)
    for name in ("said", "seen", "tries"):
        np.testing.assert_allclose(getattr(learned, name), getattr(expected, name), rtol=1e-14)
    np.testing.assert_allclose(
        learned.log_chances(tree), oracle.log_chances(learned.trust, tree), rtol=1e-12, atol=1e-14
    )


# Forgetting.


@pytest.mark.parametrize("half_life", [1.0, 2.0, HALF_LIFE])
def test_after_a_half_life_an_observation_counts_half(half_life: float) -> None:
    learned = LearnedAcceptance(half_life=half_life)
    learned.observe(TREE, [11, 13, 99])
    said, seen = learned.said.copy(), learned.seen.copy()
    for _ in range(int(half_life)):
        learned.observe(DraftTree([9], [-1]), [1])
    np.testing.assert_allclose(learned.said, said / 2, rtol=1e-14)
    np.testing.assert_allclose(learned.seen, seen / 2, rtol=1e-14)
    assert seen[0, 0] == 1.0


def test_what_is_forgotten_gives_way_to_the_prior() -> None:
    said, seen = np.full((DEPTHS, RANKS), 15.0), np.full((DEPTHS, RANKS), 6.0)
    prior = (6.0 + PRIOR_TRUST * PRIOR_WEIGHT) / (15.0 + PRIOR_WEIGHT)
    learned = LearnedAcceptance(said, seen)
    assert learned.trust == pytest.approx(np.full((DEPTHS, RANKS), prior))
    learned.observe(UNSCORED, [11, 13, 99])
    assert learned.trust[0, 0] == pytest.approx((1 + prior * PRIOR_WEIGHT) / (1 + PRIOR_WEIGHT))
    assert learned.trust[0, 1] == pytest.approx((0 + prior * PRIOR_WEIGHT) / (1 + PRIOR_WEIGHT))
    assert learned.trust[2, 0] == pytest.approx(prior)
    for _ in range(400):
        learned.observe(DraftTree([9], [-1]), [1])
    assert learned.trust == pytest.approx(np.full((DEPTHS, RANKS), prior), abs=1e-12)


def test_without_a_prior_it_is_the_general_trust() -> None:
    assert (LearnedAcceptance().trust == PRIOR_TRUST).all()
    nothing = np.zeros((DEPTHS, RANKS))
    assert (LearnedAcceptance(nothing, nothing).trust == PRIOR_TRUST).all()


def test_the_weight_of_the_prior() -> None:
    heavy, light = LearnedAcceptance(weight=50.0), LearnedAcceptance(weight=0.5)
    for learned in (heavy, light):
        learned.observe(UNSCORED, [99])
    assert heavy.trust[0, 0] == pytest.approx(0.8 * 50 / 51)
    assert light.trust[0, 0] == pytest.approx(0.8 * 0.5 / 1.5)


# Calibration.


def test_calibration_by_hand() -> None:
    said = table(d0r0=20.0, d0r1=20.0, d1r0=20.0)
    seen = table(d0r0=6.0, d0r1=16.0, d1r0=36.0)
    learned = LearnedAcceptance(said, seen)
    trust = [(6 + 4) / 25, (16 + 4) / 25, (36 + 4) / 25]  # the prior: 5 children at 0.8
    calibrated = learned.calibrate(TREE)
    assert calibrated.scores is not None
    chances = [1.0, 0.5 * trust[0], 0.25 * trust[1]]
    chances += [chances[1] * 0.6 * trust[2], chances[1] * 0.2 * 0.8, chances[2] * 0.4 * trust[2]]
    np.testing.assert_allclose(np.exp(calibrated.scores), chances)
    assert (calibrated.tokens == TREE.tokens).all() and (calibrated.parents == TREE.parents).all()

    unscored = learned.calibrate(UNSCORED)
    assert unscored.scores is not None
    # Of the second child no more than of the first; 1.6 counts as 1.
    chances = [1.0, trust[0], trust[0], trust[0], trust[0] * 0.8, trust[0]]
    np.testing.assert_allclose(np.exp(unscored.scores), chances)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scored=st.booleans(),
    draws=st.sampled_from(["deterministic", "iid", "swor"]),
)
def test_chances_are_chances(seed: int, scored: bool, draws: str) -> None:
    """Never above 1, never above the parent's, and of the same tree."""
    tree = random_tree(seed, scored, draws)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrated = random_learned(seed).calibrate(tree)
    assert calibrated.scores is not None
    assert calibrated.scores[0] == 0.0
    assert (calibrated.scores <= 0.0).all()
    assert (calibrated.scores[1:] <= calibrated.scores[tree.parents[1:]]).all()
    assert DraftTree(calibrated.tokens, calibrated.parents, tree.scores, calibrated.draws) == tree


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    draws=st.sampled_from(["iid", "swor"]),
    num_nodes=st.integers(1, 31),
    step_ms=st.floats(0.01, 3.0),
)
def test_of_drawn_siblings_the_first_are_kept(
    seed: int, draws: str, num_nodes: int, step_ms: float
) -> None:
    """Chances fall with the rank, whatever was learned; and they do not depend on the tokens."""
    drawn, learned = random_tree(seed, scored=False, draws=draws), random_learned(seed + 1)
    tree = DraftTree(np.arange(len(drawn)), drawn.parents, None, draws)
    calibrated = learned.calibrate(tree)
    np.testing.assert_array_equal(learned.calibrate(drawn).scores, calibrated.scores)
    costs = StepCosts(verify=Staircase({(n, 1): 1.0 + step_ms * n // 4 for n in range(1, 40)}))
    for part in (
        prune(calibrated, num_nodes=num_nodes),
        choose_batch([calibrated], costs, context=1).trees[0],
    ):
        assert part is not None
        kept = set(part.tokens.tolist())
        for node in kept - {0}:
            siblings = tree.children(int(tree.parents[node]))
            assert set(siblings[: siblings.index(node)]) <= kept


def test_impossible_nodes() -> None:
    """-inf: said to have no chance; nothing below has one, and no sum of counts is spoilt."""
    tree = DraftTree([0, 1, 2, 3], [-1, 0, 1, 0], [0.0, -math.inf, -math.inf, -0.5])
    learned = LearnedAcceptance()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned.observe(tree, [1, 2, 9])  # it came true all the same
        calibrated = learned.calibrate(tree)
    assert learned.said.tolist() == table(d0r1=math.exp(-0.5)).tolist()
    assert learned.seen.tolist() == table(d0r0=1.0, d1r0=1.0).tolist()
    assert np.isfinite(learned.trust).all()
    assert calibrated.scores is not None
    assert calibrated.scores.tolist()[:3] == [0.0, -math.inf, -math.inf]
    assert math.isfinite(calibrated.scores[3])


def test_scores_far_below_the_root() -> None:
    tree = DraftTree([0, 1], [-1, 0], [0.0, -1000.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LearnedAcceptance().calibrate(tree)
        LearnedAcceptance().observe(tree, [1])


def test_a_root_s_own_score_does_not_matter() -> None:
    scores = [-4.0, math.log(0.5), math.log(0.25), *np.log([0.3, 0.1, 0.1])]
    other = DraftTree(TREE.tokens, TREE.parents, scores)
    learned = random_learned(3)
    np.testing.assert_array_equal(
        learned.calibrate(other).scores,
        learned.calibrate(TREE).scores,
    )


# Convergence.

ACCEPTANCE = [[0.6, 0.2], [0.5, 0.1]]
PARENTS = [-1, 0, 0, 1, 1, 2, 2]
NUM_STEPS = 4000


@pytest.mark.parametrize("says", ["the_truth", "twice_as_much", "nothing"])
def test_true_rates_are_learned(says: str) -> None:
    """Simulated trees, and a memory long enough: within four standard errors of every cell."""
    recording = imagined(ACCEPTANCE, PARENTS, num_tokens=NUM_STEPS, context=0, seed=5)
    learned = LearnedAcceptance(half_life=1e9)
    for t, tree in enumerate(recording.drafts):
        assert tree is not None and tree.scores is not None
        scores = None
        if says != "nothing":
            scores = tree.scores - (0.0 if says == "the_truth" else tree.depths * math.log(0.5))
        learned.observe(DraftTree(tree.tokens, tree.parents, scores), range(t, NUM_STEPS + 9))
    told = {"the_truth": 1.0, "twice_as_much": 2.0, "nothing": None}[says]
    for depth, row in enumerate(ACCEPTANCE):
        trials = NUM_STEPS if depth == 0 else NUM_STEPS * sum(ACCEPTANCE[0])
        for rank, rate in enumerate(row):
            said = 1.0 if told is None else min(1.0, told * rate)
            bound = 4 * math.sqrt(rate * (1 - rate) / trials)
            prior = PRIOR_WEIGHT / (trials * said)  # what the prior may still pull
            assert abs(learned.trust[depth, rank] * said - rate) < bound + prior
    likely = learned.calibrate(DraftTree([0] * 7, PARENTS)) if told is None else None
    if likely is not None and likely.scores is not None:
        expected = [1.0, 0.6, 0.2, 0.3, 0.06, 0.1, 0.02]
        np.testing.assert_allclose(np.exp(likely.scores), expected, atol=0.03)


# Errors.


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("said", np.full((DEPTHS, RANKS), -1.0)),
        ("seen", np.full((DEPTHS, RANKS), math.nan)),
        ("said", np.full((DEPTHS, RANKS), math.inf)),
        ("seen", np.zeros((DEPTHS, RANKS + 1))),
        ("said", [[1.0], [1.0, 2.0]]),
        ("seen", [["many"] * RANKS] * DEPTHS),
        ("said", "counts"),
    ],
    ids=["negative", "nan", "inf", "shape", "ragged", "words", "text"],
)
def test_bad_counts_are_named(name: str, bad: Any) -> None:
    good = np.zeros((DEPTHS, RANKS))
    counts = {"said": good, "seen": good, name: bad}
    with pytest.raises(ValueError, match=rf"{name} must be \[8, 4\] counts >= 0, got"):
        LearnedAcceptance(**counts)


def test_other_errors() -> None:
    good = np.zeros((DEPTHS, RANKS))
    for half in ({"said": good}, {"seen": good}):
        with pytest.raises(ValueError, match="said and seen go together"):
            LearnedAcceptance(**half)
    with pytest.raises(ValueError, match="weight and half_life must be > 0, got weight=0, "):
        LearnedAcceptance(good, good, weight=0)
    with pytest.raises(ValueError, match=r"got weight=5\.0, half_life=-1"):
        LearnedAcceptance(half_life=-1)
