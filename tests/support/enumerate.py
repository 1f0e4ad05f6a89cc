# SPDX-License-Identifier: Apache-2.0
"""Exact laws of what acceptance rules emit: every draft, every coin and every draw, by its weight.

A rule of the oracle runs on a toy model once per outcome. Chance is not sampled: each event that
the rule or the drafter asks for is a branch, and all branches are taken.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor
from treeattn.reference.rules import Step

T = TypeVar("T")
Tokens = tuple[int, ...]
Rule = Callable[[Step, list[int]], int]
# The laws of siblings, one per sibling, and which of them came from one drafter -> their tokens.
Draw = Callable[[list[list[float]], list[int]], dict[Tokens, float]]
MISSING = -1  # the token of a sibling that was not drawn


class Branches:
    """Chance, with one outcome per run; `advance` moves to the next."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.weights: list[list[float]] = []
        self.used = 0

    def choose(self, weights: Sequence[float]) -> int:
        """An index of positive weight."""
        if self.used == len(self.taken):
            self.taken.append(next(i for i, weight in enumerate(weights) if weight > 0))
            self.weights.append(list(weights))
        self.used += 1
        return self.taken[self.used - 1]

    def weight(self) -> float:
        product_of = 1.0
        for choice, weights in zip(self.taken, self.weights, strict=True):
            product_of *= weights[choice]
        return product_of

    def advance(self) -> bool:
        """False after the last outcome."""
        assert self.used == len(self.taken)
        self.used = 0
        while self.taken:
            choice, weights = self.taken.pop(), self.weights[-1]
            later = [i for i in range(choice + 1, len(weights)) if weights[i] > 0]
            if later:
                self.taken.append(later[0])
                return True
            self.weights.pop()
        return False


def outcomes(run: Callable[[Branches], T]) -> Iterator[tuple[float, T]]:
    """(weight, result) of every outcome of `run`, which must be a function of its choices."""
    branches, more = Branches(), True
    while more:
        result = run(branches)
        yield branches.weight(), result
        more = branches.advance()


@dataclass(frozen=True)
class Toy:
    """A target and its drafters: laws that depend on all tokens since the root."""

    vocab_size: int
    target: Callable[[Tokens], Tensor]
    drafts: tuple[Callable[[Tokens], Tensor], ...]  # sibling i comes from drafter i % len(drafts)


def dirichlet(seed: Hashable, vocab_size: int, zeros: int = 0) -> Callable[[Tokens], Tensor]:
    """A law of its own for each history, uniform over the simplex; the last `zeros` ids have 0."""

    @cache
    def law(history: Tokens) -> Tensor:
        rng = random.Random(f"{seed} {history}")
        masses = [rng.expovariate(1) for _ in range(vocab_size - zeros)] + [0.0] * zeros
        return torch.tensor(masses, dtype=torch.float64) / sum(masses)

    return law


def toy(seed: Hashable, vocab_size: int = 3, *, num_drafters: int = 1, zeros: int = 0) -> Toy:
    drafts = (dirichlet(f"{seed} draft {i}", vocab_size, zeros) for i in range(num_drafters))
    return Toy(vocab_size, dirichlet(f"{seed} target", vocab_size), tuple(drafts))


def branching(*counts: int) -> list[int]:
    """Parents of the tree whose nodes at depth i have counts[i] children each."""
    parents, level = [-1], [0]
    for width in counts:
        below = range(len(parents), len(parents) + width * len(level))
        parents += [node for node in level for _ in range(width)]
        level = list(below)
    return parents


def iid(laws: list[list[float]], drafters: list[int]) -> dict[Tokens, float]:
    found: dict[Tokens, float] = {}
    for tokens in product(*(range(len(law)) for law in laws)):
        weight = 1.0
        for token, law in zip(tokens, laws, strict=True):
            weight *= law[token]
        found[tokens] = weight
    return found


def swor(laws: list[list[float]], drafters: list[int]) -> dict[Tokens, float]:
    """Without replacement among those of one drafter; MISSING once it has no token left."""
    found: dict[Tokens, float] = {(): 1.0}
    for sibling, (law, drafter) in enumerate(zip(laws, drafters, strict=True)):
        longer: dict[Tokens, float] = {}
        for tokens, weight in found.items():
            gone = {tokens[i] for i in range(sibling) if drafters[i] == drafter}
            left = [0.0 if token in gone else mass for token, mass in enumerate(law)]
            total = sum(left)
            if total == 0:
                longer[(*tokens, MISSING)] = weight
                continue
            for token, mass in enumerate(left):
                longer[(*tokens, token)] = weight * mass / total
        found = longer
    return found


def likeliest(laws: list[list[float]], drafters: list[int]) -> dict[Tokens, float]:
    """The top-k of the one drafter: deterministic."""
    ranked = sorted(range(len(laws[0])), key=lambda token: -laws[0][token])
    return {tuple(ranked[: len(laws)]): 1.0}


def reworked(draw: Draw, rework: Callable[[Tokens, list[float]], Sequence[int]]) -> Draw:
    """`draw`, then a change that looks at the drawn tokens; padded with MISSING."""

    def changed(laws: list[list[float]], drafters: list[int]) -> dict[Tokens, float]:
        found: dict[Tokens, float] = defaultdict(float)
        for tokens, weight in draw(laws, drafters).items():
            kept = tuple(rework(tokens, laws[0]))
            found[kept + (MISSING,) * (len(tokens) - len(kept))] += weight
        return found

    return changed


@dataclass(eq=False)
class ToyStep:
    """`rules.Step` for one outcome: siblings are drawn when the first of them is looked at."""

    toy: Toy
    parents: list[int]
    draw_siblings: Draw
    branches: Branches
    samples: bool = True
    tokens: dict[int, int] = field(default_factory=dict)
    spent: Counter[Hashable] = field(default_factory=Counter)

    @property
    def vocab_size(self) -> int:
        return self.toy.vocab_size

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def token(self, node: int) -> int:
        if node not in self.tokens:
            parent = self.parents[node]
            siblings = self.children(parent)
            rows = [self.draft_row(sibling) for sibling in siblings]
            laws = [self.draft(row).tolist() for row in rows]
            drawn = self.draw_siblings(laws, rows)
            choice = self.branches.choose(list(drawn.values()))
            self.tokens.update(zip(siblings, list(drawn)[choice], strict=True))
        return self.tokens[node]

    def greedy(self, node: int) -> int:
        return int(self.target(node).argmax())

    def target(self, node: int) -> Tensor:
        return self.toy.target(self.history(node))

    def draft_row(self, node: int) -> int:
        parent = self.parents[node]
        count = len(self.toy.drafts)
        return parent * count + self.children(parent).index(node) % count

    def draft(self, row: int) -> Tensor:
        parent, drafter = divmod(row, len(self.toy.drafts))
        return self.toy.drafts[drafter](self.history(parent))

    def accepts(self, node: int, ordinal: int, probability: float) -> bool:
        assert 0 <= probability <= 1
        self._spend(("coin of node", node))
        self._spend(("coin", ordinal))
        return self.branches.choose([1 - probability, probability]) == 1

    def draw(self, node: int, law: Tensor, purpose: int) -> int:
        self._spend(("draw", node))
        return self.branches.choose(law.tolist())

    def history(self, node: int) -> Tokens:
        return () if node == 0 else (*self.history(self.parents[node]), self.token(node))

    def _spend(self, number: Hashable) -> None:
        """Branches are independent, so a number must serve one event."""
        self.spent[number] += 1
        assert self.spent[number] == 1, f"{number} is used twice"


@dataclass(frozen=True)
class Emitted:
    """The law of the tokens of one step."""

    toy: Toy
    weights: dict[Tokens, float]

    def mean_length(self) -> float:
        return sum(weight * len(tokens) for tokens, weight in self.weights.items())

    def completed(self, length: int) -> dict[Tokens, float]:
        """The law of the first `length` tokens when the target goes on after the step."""
        found: dict[Tokens, float] = defaultdict(float)
        for tokens, weight in self.weights.items():
            assert len(tokens) <= length
            for rest, mass in _continued(self.toy, tokens, length - len(tokens)).items():
                found[tokens + rest] += weight * mass
        return found

    def bias(self, length: int) -> float:
        """Total variation to the target's law over `length` tokens."""
        found, wanted = self.completed(length), _continued(self.toy, (), length)
        return sum(abs(found.get(k, 0.0) - wanted.get(k, 0.0)) for k in {*found, *wanted}) / 2


def emitted(toy: Toy, parents: list[int], draw_siblings: Draw, rule: Rule) -> Emitted:
    """Exactly what one step of `rule` emits on trees of that shape."""

    def run(branches: Branches) -> Tokens:
        step, path = ToyStep(toy, parents, draw_siblings, branches), [0]
        last = rule(step, path)
        return (*(step.tokens[node] for node in path[1:]), last)

    weights: dict[Tokens, float] = defaultdict(float)
    for weight, tokens in outcomes(run):
        weights[tokens] += weight
    return Emitted(toy, weights)


def _continued(toy: Toy, history: Tokens, length: int) -> dict[Tokens, float]:
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        found = {
            (*tokens, token): weight * mass
            for tokens, weight in found.items()
            for token, mass in enumerate(toy.target(history + tokens).tolist())
        }
    return found
