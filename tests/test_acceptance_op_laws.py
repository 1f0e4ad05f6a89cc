# SPDX-License-Identifier: Apache-2.0
"""What the op emits has the target's law, to fp32: by exact enumeration, through `uniforms`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from support.enumerate import (
    Draw,
    Emitted,
    Rule,
    Toy,
    branching,
    emitted,
    iid,
    likeliest,
    swor,
    toy,
)
from support.enumerate_op import emitted_by_op
from support.trees import depth_of, random_parents
from treeattn.reference import rules

pytestmark = pytest.mark.usefixtures("machine")
LOSSLESS = 1e-6
TRAVERSAL_IID, TRAVERSAL_SWOR = (partial(rules.traversal, swor=swor) for swor in (False, True))


@dataclass(frozen=True)
class Case:
    name: str
    rule: Rule
    draw: Draw
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.name

    def run(self, model: Toy, parents: list[int], device: str) -> Emitted:
        return emitted_by_op(model, parents, self.draw, self.rule, self.options, device)


TARGET = Case("target", rules.target, likeliest, {"rule": "target"})
TRIALS = [
    Case("multistep", rules.multistep, iid, {"rule": "multistep"}),
    Case("swor", rules.swor, swor, {"rule": "swor"}),
    Case("traversal_iid", TRAVERSAL_IID, iid, {"rule": "traversal", "draws": "iid"}),
    Case("traversal_swor", TRAVERSAL_SWOR, swor, {"rule": "traversal", "draws": "swor"}),
]
BLOCK = Case("block", rules.block, iid, {"rule": "block"})
SHAPES = [(1, 1), (2,), (2, 1), (2, 2), (3, 1)]


def check(case: Case, model: Toy, parents: list[int], device: str) -> None:
    found = case.run(model, parents, device)
    assert sum(found.weights.values()) == pytest.approx(1, abs=LOSSLESS)
    assert found.bias(depth_of(parents) + 1) < LOSSLESS
    exact = emitted(model, parents, case.draw, case.rule)
    for tokens in {*found.weights, *exact.weights}:
        assert found.weights.get(tokens, 0.0) == pytest.approx(
            exact.weights.get(tokens, 0.0), abs=LOSSLESS
        )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", [TARGET, *TRIALS], ids=str)
def test_lossless(case: Case, shape: tuple[int, ...], device: str) -> None:
    check(case, toy(f"op {shape}"), branching(*shape), device)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("draw", [iid, swor])
def test_block(length: int, draw: Draw, device: str) -> None:
    case = Case("block", rules.block, draw, {"rule": "block"})
    check(case, toy(f"op chain {length}"), branching(*[1] * length), device)


@pytest.mark.parametrize("case", [TARGET, *TRIALS, BLOCK], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_ragged_shapes(case: Case, seed: int, device: str) -> None:
    """Unequal branching, ids that no draft has, more siblings than tokens."""
    rng = random.Random(f"ragged {seed}")
    vocab_size = rng.choice([2, 3])
    chain = case is BLOCK
    parents = random_parents(rng, rng.choice([4, 5]), 0.0 if chain else 0.7)
    model = toy(f"op ragged {seed}", vocab_size, zeros=rng.choice([0, 1]))
    check(case, model, parents, device)


@pytest.mark.parametrize("case", TRIALS, ids=str)
@pytest.mark.parametrize("shape", [(2,), (3,), (2, 1)], ids=str)
def test_two_drafters_below_one_parent(case: Case, shape: tuple[int, ...], device: str) -> None:
    check(case, toy(f"op drafters {shape}", num_drafters=2), branching(*shape), device)


def test_a_draft_equal_to_the_target(device: str) -> None:
    """Everything is accepted, up to the rounding of p / q."""
    model = toy("op same")
    same = Toy(model.vocab_size, model.target, (model.target,))
    for case in TRIALS:
        found = case.run(same, branching(2, 1), device)
        assert found.bias(3) < LOSSLESS
        assert found.mean_length() == pytest.approx(3, abs=1e-5)
