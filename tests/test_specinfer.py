# SPDX-License-Identifier: Apache-2.0
"""specinfer: shapes, order, scores and draws; that sampled trees are lossless, by enumeration."""

from __future__ import annotations

import importlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.enumerate import Branches, Emitted, Rule, Tokens, Toy, ToyStep, iid, outcomes, toy
from torch import Tensor
from treeattn.reference import rules
from treeattn.schedule import merge_trees, specinfer
from treeattn.tree import DraftTree

MODULE = importlib.import_module("treeattn.schedule.specinfer")
DEFAULT = (1, 1, 3, 1, 1, 1, 1, 1)


def token_path(tree: DraftTree, node: int) -> Tokens:
    return tuple(tree.tokens[tree.path(node)[1:]].tolist())


@dataclass(eq=False)
class Drafter:
    """A law of its own for each path; records what it was asked."""

    vocab_size: int = 6
    seed: int = 0
    asked: int = 0
    last: DraftTree | None = None

    def law(self, path: Tokens) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *path)) % 2**31)
        logits = torch.randn(self.vocab_size, generator=generator, dtype=torch.float64)
        return (2 * logits).log_softmax(-1)

    def __call__(self, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        if self.last is not None:  # the tree only grows
            assert np.array_equal(tree.tokens[: len(self.last)], self.last.tokens)
            assert np.array_equal(tree.parents[: len(self.last)], self.last.parents)
        assert len(set(tree.depths[list(nodes)])) == 1
        self.asked, self.last = self.asked + 1, tree
        return torch.stack([self.law(token_path(tree, node)) for node in nodes])


def num_nodes(expansion: Sequence[int]) -> int:
    return 1 + sum(math.prod(expansion[: level + 1]) for level in range(len(expansion)))


@pytest.mark.parametrize("sample", [False, True], ids=["likeliest", "sampled"])
@pytest.mark.parametrize("expansion", [DEFAULT, (3, 2), (4,), (), (2, 2, 2)], ids=str)
def test_shape_and_calls(expansion: tuple[int, ...], sample: bool) -> None:
    drafter = Drafter()
    tree = specinfer(drafter, 9, expansion=expansion, sample=sample, seed=5)
    assert tree.tokens[0] == 9
    assert len(tree) == num_nodes(expansion)
    assert drafter.asked == len(expansion)
    widths = [math.prod(expansion[:depth]) for depth in range(len(expansion) + 1)]
    assert np.bincount(tree.depths).tolist() == widths
    assert tree.draws == ("iid" if sample else "deterministic")
    assert tree.draft_rows is None
    assert tree.scores is not None
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        law = drafter.law(token_path(tree, parent))
        assert tree.scores[node] == tree.scores[parent] + float(law[tree.tokens[node]])
    in_order = tree.dfs()
    assert np.array_equal(in_order.tokens, tree.tokens)
    assert np.array_equal(in_order.parents, tree.parents)


def test_the_default_is_the_papers() -> None:
    assert specinfer(Drafter(), 0) == specinfer(Drafter(), 0, expansion=DEFAULT)
    assert len(specinfer(Drafter(), 0)) == 1 + 1 + 1 + 6 * 3


def test_children_are_the_likeliest() -> None:
    drafter = Drafter()
    tree = specinfer(drafter, 9, expansion=(3, 2))
    for node in range(len(tree)):
        children = tree.tokens[tree.children(node)].tolist()
        best = drafter.law(token_path(tree, node)).argsort(descending=True).tolist()
        assert children == best[: len(children)]


def test_ties_go_to_the_smaller_token() -> None:
    tree = specinfer(lambda tree, nodes: torch.zeros(len(nodes), 300), 9, expansion=(3, 1))
    assert tree.tokens[tree.children(0)].tolist() == [0, 1, 2]


@pytest.mark.parametrize("sample", [False, True], ids=["likeliest", "sampled"])
def test_tokens_without_probability(sample: bool) -> None:
    law = torch.tensor([-torch.inf, 1e-7, -torch.inf])  # a little above 0, by rounding

    def log_probs(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        return (
            law.expand(len(nodes), 3) if len(tree) < 4 else torch.full((len(nodes), 3), -torch.inf)
        )

    tree = specinfer(log_probs, 9, expansion=(1, 2, 2, 2), sample=sample)
    assert set(tree.tokens[1:]) == {1}
    assert tree.depths.max() == (2 if sample else 3)
    assert tree.scores is not None and tree.scores.max() == 0.0


def test_seeds() -> None:
    def drawn(seed: int) -> DraftTree:
        return specinfer(Drafter(1000), 9, expansion=(3, 3), sample=True, seed=seed)

    state = torch.random.get_rng_state()
    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed).tokens.tolist()) for seed in range(20)}) == 20
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_ends_of_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniforms on its steps and just below 1; rounding may leave its sum off 1."""
    law = torch.tensor([[0.0, 0.25, 0.25, 0.0]], dtype=torch.float64).log()
    uniforms = torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *size, **options: uniforms)
    tree = specinfer(lambda tree, nodes: law, 9, expansion=(3,), sample=True)
    assert tree.tokens[1:].tolist() == [1, 2, 2]


def test_draws_have_the_law() -> None:
    """Siblings one by one and in pairs, chi-square below the 1 - 1e-4 quantile."""
    law = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    count = 20_000
    tree = specinfer(
        lambda tree, nodes: law.log()[None], 9, expansion=(count,), sample=True, seed=3
    )
    assert (tree.parents[1:] == 0).all()
    single, pairs = law[law > 0], torch.outer(law, law)[torch.outer(law, law) > 0]
    tokens = tree.tokens[1:]
    assert 1 not in tokens
    found = torch.from_numpy(np.bincount(tokens, minlength=4))[law > 0]
    assert float(((found - count * single) ** 2 / (count * single)).sum()) < 18.4  # 2 degrees
    codes = np.bincount(4 * tokens[::2] + tokens[1::2], minlength=16)
    found = torch.from_numpy(codes)[torch.outer(law, law).flatten() > 0]
    expected = count / 2 * pairs
    assert float(((found - expected) ** 2 / expected).sum()) < 31.8  # 8 degrees


@settings(max_examples=50, deadline=None)
@given(
    expansion=st.lists(st.integers(1, 3), max_size=4),
    seed=st.integers(0, 2**31),
    vocab=st.integers(1, 3),
)
def test_what_is_drawn_twice_is_asked_once(expansion: list[int], seed: int, vocab: int) -> None:
    """A token drawn c times below a parent that has w children per draw: c siblings, the first of
    which has c times its share, the others none."""
    drafter = Drafter(vocab)
    tree = specinfer(drafter, 9, expansion=expansion, sample=True, seed=seed)
    assert len(tree) == num_nodes(expansion)
    times = {0: 1}
    for node in range(len(tree)):
        children = tree.children(node)
        depth = int(tree.depths[node])
        share = expansion[depth] if depth < len(expansion) else 0
        assert len(children) == share * times.get(node, 0)
        counts = Counter(tree.tokens[children].tolist())
        for child in children:
            times[child] = counts.pop(int(tree.tokens[child]), 0)


def test_growth_says_where_its_nodes_came_from() -> None:
    drafter = Drafter(3)
    growth = MODULE.Growth(9, expansion=(2, 3, 2), sample=True, seed=1)
    asked: dict[int, Tokens] = {}
    while growth.frontier:
        tree = growth.tree()
        asked.update({node: token_path(tree, node) for node in growth.frontier})
        growth.expand(drafter(tree, growth.frontier))
    result, order = growth.result(), growth.order
    assert sorted(order) == list(range(len(result)))
    for node in range(len(result)):
        if result.children(node):
            assert asked[int(order[node])] == token_path(result, node)


# Losslessness: every draw of the tree, every coin and every draw of the rule.


@dataclass(eq=False)
class GrownStep(ToyStep):
    """A step on trees that were drawn before, one per drafter, and merged."""

    drafted: Sequence[DraftTree] = ()
    rows: Sequence[int] = ()

    def draft_row(self, node: int) -> int:
        return int(self.rows[node])

    def draft(self, row: int) -> Tensor:
        for law, tree in zip(self.toy.drafts, self.drafted, strict=True):
            if row < len(tree):
                return law(token_path(tree, row))
            row -= len(tree)
        raise AssertionError


def emitted(
    model: Toy, expansions: Sequence[Sequence[int]], rule: Rule, patch: Callable
) -> Emitted:
    def run(branches: Branches) -> Tokens:
        def sampled(laws: Tensor, counts: Sequence[int], generator: object) -> list[list[int]]:
            return [
                [branches.choose(law.exp().tolist()) for _ in range(count)]
                for law, count in zip(laws, counts, strict=True)
            ]

        patch(MODULE, "sampled", sampled)
        trees = [
            specinfer(
                lambda tree, nodes, law=law: torch.stack(
                    [law(token_path(tree, node)).log() for node in nodes]
                ),
                9,
                expansion=expansion,
                sample=True,
            )
            for law, expansion in zip(model.drafts, expansions, strict=True)
        ]
        tree = merge_trees(trees)
        assert tree.draft_rows is not None
        step = GrownStep(
            model,
            tree.parents.tolist(),
            iid,
            branches,
            tokens=dict(enumerate(tree.tokens.tolist())),
            drafted=trees,
            rows=tree.draft_rows.tolist(),
        )
        path = [0]
        last = rule(step, path)
        return (*(step.tokens[node] for node in path[1:]), last)

    weights: dict[Tokens, float] = defaultdict(float)
    for weight, tokens in outcomes(run):
        weights[tokens] += weight
    return Emitted(model, weights)


@pytest.mark.parametrize(
    "rule",
    [rules.target, rules.multistep, partial(rules.traversal, swor=False)],
    ids=["target", "multistep", "traversal"],
)
@pytest.mark.parametrize(
    ("vocab_size", "expansions"),
    [(3, [(2, 1)]), (2, [(2, 2)]), (2, [(2, 1), (1, 1)])],
    ids=["2x1", "2x2", "two_drafters"],
)
def test_sampled_trees_are_lossless(
    rule: Rule,
    vocab_size: int,
    expansions: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = toy(4, vocab_size, num_drafters=len(expansions))
    result = emitted(model, expansions, rule, monkeypatch.setattr)
    assert sum(result.weights.values()) == pytest.approx(1, abs=1e-12)
    assert result.bias(3) < 1e-12


@pytest.mark.parametrize(
    ("log_probs", "expansion", "message"),
    [
        (torch.zeros(1, 4), (1, 0), r"expansion\[1\] must be >= 1, got 0"),
        (torch.zeros(2, 4), (1,), r"log_probs must return a row per node, \[1, V\], got \[2, 4\]"),
        (torch.zeros(4), (1,), r"a row per node, \[1, V\], got \[4\]"),
        (torch.full((1, 4), torch.nan), (1,), "log_probs must return log probabilities, got nan"),
    ],
    ids=["width", "rows", "shape", "nan"],
)
@pytest.mark.parametrize("sample", [False, True], ids=["likeliest", "sampled"])
def test_bad_input(
    log_probs: Tensor, expansion: tuple[int, ...], message: str, sample: bool
) -> None:
    with pytest.raises(ValueError, match=message):
        specinfer(lambda tree, nodes: log_probs, 9, expansion=expansion, sample=sample)
