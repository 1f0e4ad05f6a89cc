# SPDX-License-Identifier: Apache-2.0
"""The rules of `accept_path`, one function each, for one request.

A rule extends `path` ([0] at first) by the nodes it accepts and returns the token after the last.
Where a row that it needs gives no law, `BadRow` leaves it: greedy, target, multistep, swor and
typical have put into `path` what was accepted before, block and traversal nothing.

A child whose token lies outside the vocabulary or has q = 0 is no trial: it takes no coin, leaves
the residual as it is, and so changes nothing at all. Neither do the rows below a node that the
target cannot emit, which are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from torch import Tensor

from treeattn.reference.laws import BadRow, excess, residual, without
from treeattn.reference.randomness import BONUS, DRAW, RESIDUAL


class Step(Protocol):
    """One request's tree, its laws, and chance; nodes are ids within the request."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def samples(self) -> bool:
        """Whether there are numbers to draw with; rule typical does without."""

    def children(self, node: int) -> list[int]:
        """In the order in which they were drawn."""

    def token(self, node: int) -> int: ...

    def greedy(self, node: int) -> int:
        """The largest logit's id at `node`."""

    def target(self, node: int) -> Tensor:
        """[V]: the law of the token after `node`, filters applied."""

    def draft_row(self, node: int) -> int:
        """Which draft law `node` was drawn from."""

    def draft(self, row: int) -> Tensor:
        """[V]: that law."""

    def accepts(self, node: int, ordinal: int, probability: float) -> bool:
        """True with the given probability: the coin for trying `node`, the step's `ordinal`-th."""

    def draw(self, node: int, law: Tensor, purpose: int) -> int:
        """An id from `law`: the draw made at `node`."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A child to accept or reject, its token, and the law [V] that it was drawn from."""

    child: int
    token: int
    draft: Tensor

    def ratio(self, law: Tensor) -> float:
        return float(law[self.token] / self.draft[self.token])


class Siblings:
    """The children of one node that are still to be tried, in order."""

    def __init__(self, step: Step, node: int, *, swor: bool = False) -> None:
        self.step, self.swor = step, swor
        self.left = step.children(node)
        self.laws: dict[int, Tensor] = {}  # by draft row, after those that were taken from it

    def next(self) -> Trial | None:
        while self.left:
            child = self.left.pop(0)
            token = self.step.token(child)
            if not 0 <= token < self.step.vocab_size:
                continue
            row = self.step.draft_row(child)
            draft = self.laws[row] if row in self.laws else self.step.draft(row)
            if bool(draft[token] > 0):
                self.laws[row] = without(draft, token) if self.swor else draft
                return Trial(child, token, draft)
        return None


def greedy(step: Step, path: list[int]) -> int:
    """Walk along the argmax."""
    return _match(step, path, step.greedy)


def target(step: Step, path: list[int]) -> int:
    """Draw from the target at each node and follow the child that holds the draw."""
    return _match(step, path, lambda node: step.draw(node, step.target(node), DRAW))


def multistep(step: Step, path: list[int]) -> int:
    """SpecInfer's multi-step speculative sampling; siblings were drawn i.i.d."""
    return _try_siblings(step, path, swor=False)


def swor(step: Step, path: list[int]) -> int:
    """Recursive rejection; siblings were drawn without replacement, in order."""
    return _try_siblings(step, path, swor=True)


def block(step: Step, path: list[int]) -> int:
    """Block verification of a chain: the longest prefix whose own coin accepts it.

    The coin of the node at depth i is the i-th of the step, counted from 0 at depth 1.
    """
    nodes, reach = [0], [1.0]  # reach[i]: p_i of the prefix that ends at nodes[i]
    laws: list[Tensor] = []
    drafts: list[Tensor] = []
    while reach[-1] > 0 and (trial := Siblings(step, nodes[-1]).next()):
        laws.append(step.target(nodes[-1]))
        drafts.append(trial.draft)
        reach.append(min(1.0, reach[-1] * trial.ratio(laws[-1])))
        nodes.append(trial.child)
    end = accepted = len(nodes) - 1
    while accepted > 0:
        chance = reach[accepted]
        if accepted < end:
            chance = _keep(chance, laws[accepted], drafts[accepted])
        if step.accepts(nodes[accepted], accepted - 1, chance):
            break
        accepted -= 1
    last = nodes[accepted]
    if accepted == end:
        token = step.draw(last, step.target(last), BONUS)
    else:
        law = residual(reach[accepted] * laws[accepted], drafts[accepted])
        token = step.draw(last, law, RESIDUAL)
    path += nodes[1 : accepted + 1]
    return token


def traversal(step: Step, path: list[int], *, swor: bool) -> int:
    """Traversal verification: tries leaves, first child first, and removes those it rejects.

    A node that cannot be accepted any more counts as a leaf, whatever hangs below it. The root is
    accepted without a coin.
    """
    ordinals = count()
    siblings = {0: Siblings(step, 0, swor=swor)}
    laws: dict[int, Tensor] = {}  # of the nodes that some trial was a child of
    reach = {0: 1.0}
    walk: list[Trial] = []  # from a child of the root to the leaf of the moment
    while True:
        node = walk[-1].child if walk else 0
        if reach[node] > 0 and (trial := siblings[node].next()):
            if node not in laws:
                laws[node] = step.target(node)
            reach[trial.child] = min(1.0, reach[node] * trial.ratio(laws[node]))
            siblings[trial.child] = Siblings(step, trial.child, swor=swor)
            walk.append(trial)
        elif node == 0 or step.accepts(node, next(ordinals), reach[node]):
            if node in laws:
                token = step.draw(node, laws[node], RESIDUAL)
            else:
                token = step.draw(node, step.target(node), BONUS)
            path += [trial.child for trial in walk]
            return token
        else:
            rejected = walk.pop()
            parent = walk[-1].child if walk else 0
            before, law = reach[parent], laws[parent]
            laws[parent] = residual(before * law, rejected.draft)
            reach[parent] = _keep(before, law, rejected.draft) if walk else 1.0


def typical(step: Step, path: list[int], *, epsilon: float, delta: float) -> int:
    """Medusa's typical acceptance: lossy by design, its tokens do not have the target's law.

    A token is accepted where its probability exceeds min(epsilon, delta * exp(-entropy)). The
    longest accepted path wins, ties by the sum of log probabilities, then by the smaller node. A
    bad row ends the paths through it and matters only if the longest one ends there.
    """
    paths, scores = {0: [0]}, {0: 0.0}
    for node in (nodes := [0]):  # grows while it is walked
        children = step.children(node)
        try:
            law = step.target(node) if children else None
        except BadRow:
            continue
        for child in children:
            token = step.token(child)
            if law is None or not 0 <= token < len(law):
                continue
            entropy = -law.xlogy(law).sum()
            if float(law[token]) > min(epsilon, delta * float((-entropy).exp())):
                paths[child] = [*paths[node], child]
                scores[child] = scores[node] + float(law[token].log())
                nodes.append(child)
    last = max(nodes, key=lambda node: (len(paths[node]), scores[node], -node))
    path += paths[last][1:]
    return step.draw(last, step.target(last), BONUS) if step.samples else step.greedy(last)


def _match(step: Step, path: list[int], choose: Callable[[int], int]) -> int:
    while True:
        token = choose(path[-1])
        children = [child for child in step.children(path[-1]) if step.token(child) == token]
        if not children:
            return token
        path.append(children[0])


def _try_siblings(step: Step, path: list[int], *, swor: bool) -> int:
    """Node by node: accept a child with probability min(1, law / draft), else take the residual."""
    ordinals = count()
    while True:
        node = path[-1]
        law, purpose = step.target(node), BONUS
        siblings = Siblings(step, node, swor=swor)
        while trial := siblings.next():
            if step.accepts(trial.child, next(ordinals), min(1.0, trial.ratio(law))):
                path.append(trial.child)
                break
            law, purpose = residual(law, trial.draft), RESIDUAL
        else:
            return step.draw(node, law, purpose)


def _keep(reach: float, law: Tensor, draft: Tensor) -> float:
    """The chance to stop at a node whose child, drawn from `draft`, was rejected."""
    mass = float(excess(reach * law, draft).sum())
    return mass / (mass + (1 - reach)) if mass > 0 else 0.0  # never above 1
