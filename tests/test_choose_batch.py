# SPDX-License-Identifier: Apache-2.0
"""choose_batch: one budget for all requests, against every way to spend it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from support.trees import random_parents
from treeattn.cost import Staircase, StepCosts, path_probs
from treeattn.schedule import BatchPlan, choose_batch
from treeattn.tree import DraftTree

CONTEXT = 100


def random_tree(rng: random.Random, num_nodes: int, draws: str = "deterministic") -> DraftTree:
    parents = random_parents(rng, num_nodes)
    scores = [0.0]
    for parent in parents[1:]:
        scores.append(scores[parent] + rng.choice([0.0, -0.2, -0.5, -1.5, -4.0, -math.inf]))
    return DraftTree([rng.randrange(9) for _ in parents], parents, scores, draws)


def chain(*log_probs: float) -> DraftTree:
    scores = [0.0, *itertools.accumulate(log_probs)]
    return DraftTree([1] * len(scores), range(-1, len(scores) - 1), scores)


def verify_table(ms_by_rows: dict[int, float]) -> Staircase:
    return Staircase({(rows, CONTEXT): ms for rows, ms in ms_by_rows.items()})


def parts(tree: DraftTree) -> Iterator[tuple[int, ...]]:
    """Every set of nodes with the root that is a tree."""
    for kept in itertools.product([False, True], repeat=len(tree) - 1):
        mask = [True, *kept]
        if all(mask[tree.parents[node]] for node in range(1, len(tree)) if mask[node]):
            yield tuple(node for node in range(len(tree)) if mask[node])


def best_rate(trees: list[DraftTree], costs: StepCosts, most_rows: int) -> float:
    """Of all ways to keep a part of every tree."""
    best = 0.0
    for choice in itertools.product(*(list(parts(tree)) for tree in trees)):
        rows = sum(len(nodes) for nodes in choice)
        if len(trees) < rows > most_rows:
            continue
        tokens = sum(
            math.exp(tree.scores[node])
            for tree, nodes in zip(trees, choice, strict=True)
            for node in nodes
        )
        depths = [tree.depths[node] for t, tree in enumerate(trees) for node in choice[t]]
        best = max(best, tokens / step_ms(costs, trees, choice, rows, int(max(depths))))
    return best


def step_ms(
    costs: StepCosts,
    trees: list[DraftTree],
    choice: tuple[tuple[int, ...], ...],
    rows: int,
    depth: int,
) -> float:
    ms = float(costs.after_draft([rows], CONTEXT)[0])
    for level in range(1, depth + 1) if costs.draft is not None else ():
        asked = {
            (t, int(tree.parents[node]))
            for t, tree in enumerate(trees)
            for node in choice[t]
            if tree.depths[node] == level
        }
        ms += costs.draft(level, len(asked))
    return ms


def check(plan: BatchPlan, trees: list[DraftTree], costs: StepCosts) -> None:
    """The plan is what it says of itself."""
    kept = [tree for tree in plan.trees if tree is not None]
    assert plan.rows == sum(len(tree) for tree in kept)
    assert plan.depth == max(int(tree.depths.max()) for tree in kept)
    scores = np.concatenate([tree.scores for tree in kept if tree.scores is not None])
    assert plan.tokens == pytest.approx(np.exp(scores).sum())
    nodes = tuple(tuple(range(len(tree))) for tree in kept)
    assert plan.ms == pytest.approx(step_ms(costs, kept, nodes, plan.rows, plan.depth))


@pytest.mark.parametrize("seed", range(25))
def test_no_other_plan_is_faster(seed: int) -> None:
    """A level of drafting costs the same at any width; steps, dips and gaps in the tables."""
    rng = random.Random(seed)
    trees = [random_tree(rng, rng.randint(1, 6)) for _ in range(rng.randint(1, 3))]
    sizes = sorted({*rng.sample(range(1, 13), 3), 16})
    costs = StepCosts(
        verify=verify_table({rows: rng.uniform(1, 1 + rows / 3) for rows in sizes}),
        draft=Staircase({(level, 99): rng.uniform(0.01, 0.4) for level in range(1, 4)}),
        accept=Staircase({4: 0.1, 16: 0.2}),
        remap=Staircase({8: 0.05, 16: 0.3}),
    )
    most_rows = rng.choice([3, 7, 99])
    plan = choose_batch(trees, costs, context=CONTEXT, max_rows=most_rows)
    check(plan, trees, costs)
    assert plan.tokens / plan.ms == pytest.approx(best_rate(trees, costs, most_rows), rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_width_costs_too(seed: int) -> None:
    """Then it is no worse than plain decoding and every chain, and prices what it chose."""
    rng = random.Random(seed)
    trees = [random_tree(rng, 5) for _ in range(2)]
    scale = rng.choice([0.005, 0.02, 0.1])
    costs = StepCosts(
        verify=verify_table({2: 1.0, 4: 1.2, 16: 1.5}),
        draft=Staircase({(level, w): scale * w**2 for level in range(1, 6) for w in range(1, 9)}),
    )
    plan = choose_batch(trees, costs, context=CONTEXT)
    check(plan, trees, costs)
    rate = plan.tokens / plan.ms
    assert rate >= 2 / 1.0
    for depth in range(1, 5):
        spines = [spine(tree)[: depth + 1] for tree in trees]
        tokens = sum(math.exp(t.scores[n]) for t, s in zip(trees, spines, strict=True) for n in s)
        deepest = max(map(len, spines)) - 1
        ms = step_ms(costs, trees, tuple(map(tuple, spines)), sum(map(len, spines)), deepest)
        assert rate >= tokens / ms * (1 - 1e-12)
    assert rate <= best_rate(trees, costs, 99) * (1 + 1e-12)


def spine(tree: DraftTree) -> list[int]:
    path = [0]
    while children := tree.children(path[-1]):
        path.append(max(children, key=lambda child: (tree.scores[child], -child)))
    return path


def test_nodes_go_where_they_are_likeliest() -> None:
    sure, unsure = chain(-0.1, -0.1, -0.1, -0.1), chain(-3.0, -3.0)
    costs = StepCosts(verify=verify_table({2: 10.0, 6: 10.5, 20: 40.0}))
    plan = choose_batch([sure, unsure], costs, context=CONTEXT)
    assert [len(tree) for tree in plan.trees if tree is not None] == [5, 1]


def test_chains_are_among_the_answers() -> None:
    """A second sibling would make a level's drafting too wide, and then too slow."""
    probs = [1, 0.9, 0.88, 0.86, 0.84, 0.89, 0.87, 0.85, 0.83]  # two branches, nearly as good
    tree = DraftTree([0] * 9, [-1, 0, 1, 2, 3, 0, 5, 6, 7], np.log(probs))
    by_width = {
        (level, width): 0.01 if width == 1 else 9.0 for level in range(1, 5) for width in (1, 2)
    }
    costs = StepCosts(verify=verify_table({1: 1.0, 9: 1.1}), draft=Staircase(by_width))
    plan = choose_batch([tree], costs, context=CONTEXT)
    assert plan.trees[0] is not None and plan.trees[0].parents.tolist() == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, 4), (8, 4), (64, 2), (256, 1)], ids=lambda value: str(value)
)
def test_trees_shrink_and_go_off_as_the_batch_grows(batch_size: int, sizes: int) -> None:
    """Up to 128 rows cost what the weights cost, from there on every row counts."""
    table = {rows: max(10.0, rows * 10 / 128) for rows in range(64, 1025, 64)}
    tree = DraftTree([0] * 4, [-1, 0, 1, 2], np.log(path_probs([-1, 0, 1, 2], [[0.7]])))
    plan = choose_batch([tree] * batch_size, StepCosts(verify_table(table)), context=CONTEXT)
    assert {len(tree) for tree in plan.trees if tree is not None} == {sizes}


def test_limits_of_requests() -> None:
    trees = [chain(-0.1, -0.1, -0.1), chain(-0.1, -0.1, -0.1), chain(-0.2, -0.1, -0.1)]
    costs = StepCosts(verify=verify_table({3: 10.0, 99: 10.1}))
    plan = choose_batch(trees, costs, context=CONTEXT, max_nodes=[2, 99, 99], max_depths=[9, 9, 0])
    assert [len(tree) for tree in plan.trees if tree is not None] == [2, 4, 1]
    plan = choose_batch(trees, costs, context=CONTEXT, max_rows=5)
    assert plan.rows == 5


def test_what_was_not_measured_is_not_chosen() -> None:
    tree = chain(-0.1, -0.1, -0.1)
    short = StepCosts(verify=verify_table({1: 10.0, 2: 10.0}))
    assert choose_batch([tree], short, context=CONTEXT).rows == 2
    assert choose_batch([tree], short, context=CONTEXT + 1).rows == 1
    shallow = StepCosts(verify_table({1: 10.0, 9: 10.0}), draft=Staircase({(1, 1): 0.1}))
    assert choose_batch([tree], shallow, context=CONTEXT).depth == 1
    broken = StepCosts(verify_table({1: math.nan, 9: math.nan}), draft=Staircase({}))
    assert choose_batch([tree], broken, context=CONTEXT).rows == 1


def test_requests_that_are_not_there() -> None:
    costs = StepCosts(verify=verify_table({1: 10.0, 9: 10.1}))
    plan = choose_batch([None, chain(-0.1), DraftTree([], [])], costs, context=CONTEXT)
    assert plan.trees[0] is None and plan.rows == 2
    assert [len(tree) for tree in plan.trees[1:] if tree is not None] == [2, 0]
    plan = choose_batch([None], costs, context=CONTEXT)
    assert (plan.rows, plan.tokens, plan.ms, plan.trees) == (0, 0.0, 0.0, (None,))


def test_sampled_trees_are_pruned() -> None:
    tree = random_tree(random.Random(0), 9, "iid")
    costs = StepCosts(verify=verify_table({1: 10.0, 9: 10.1}))
    (kept,) = choose_batch([tree], costs, context=CONTEXT).trees
    assert kept is not None and kept.draws == "pruned"


def test_bad_input() -> None:
    costs = StepCosts(verify=verify_table({1: 10.0}))
    with pytest.raises(ValueError, match="tree must have scores"):
        choose_batch([DraftTree.chain([1, 2])], costs, context=CONTEXT)
    with pytest.raises(ValueError, match="max_nodes must have 1 entries, got 2"):
        choose_batch([chain(-1.0)], costs, context=CONTEXT, max_nodes=[1, 2])
