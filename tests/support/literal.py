# SPDX-License-Identifier: Apache-2.0
"""Expected tokens per step straight from the papers' statements, on lists of floats.

No code of the oracle, and another way to integrate: here the tree is fixed, and one pass sums the
chances of where the step ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.enumerate import Draw, Tokens, Toy

Law = list[float]


@dataclass
class _Node:
    target: Law
    draft: Law
    token: int
    children: list[int]
    parent: int
    depth: int
    reach: float = 1.0


def expected_tokens(toy: Toy, parents: list[int], draw_siblings: Draw, rule: str) -> float:
    """Accepted tokens and the next one, for rule "recursive" or "traversal" and one drafter.

    Siblings under swor must be drawn by support.enumerate.swor.
    """
    total = 0.0
    without = draw_siblings.__name__ == "swor"
    for weight, tokens in _assignments(toy, parents, draw_siblings):
        nodes = _nodes(toy, parents, tokens)
        score = _recursive if rule == "recursive" else _traversal
        total += weight * score(nodes, without)
    return total


def _assignments(toy: Toy, parents: list[int], draw: Draw) -> list[tuple[float, Tokens]]:
    """Every way to give the nodes below the root their tokens."""
    found: list[tuple[float, Tokens]] = [(1.0, (-1,) * len(parents))]
    for parent in sorted(set(parents[1:])):
        children = [i for i, p in enumerate(parents) if p == parent]
        longer = []
        for weight, tokens in found:
            law = toy.drafts[0](_history(parents, tokens, parent)).tolist()
            for drawn, mass in draw([law] * len(children), [0] * len(children)).items():
                filled = list(tokens)
                for child, token in zip(children, drawn, strict=True):
                    filled[child] = token
                if mass > 0:
                    longer.append((weight * mass, tuple(filled)))
        found = longer
    return found


def _history(parents: list[int], tokens: Tokens, node: int) -> Tokens:
    return () if node == 0 else (*_history(parents, tokens, parents[node]), tokens[node])


def _nodes(toy: Toy, parents: list[int], tokens: Tokens) -> list[_Node]:
    nodes: list[_Node] = []
    for i, parent in enumerate(parents):
        history = _history(parents, tokens, i)
        nodes.append(
            _Node(
                toy.target(history).tolist(),
                toy.drafts[0](history).tolist(),
                tokens[i],
                [child for child, p in enumerate(parents) if p == i],
                parent,
                len(history),
            )
        )
    return nodes


def _recursive(nodes: list[_Node], without: bool) -> float:
    """Node by node: each child is accepted with min(1, r(x) / q(x)) after those before it."""

    def below(i: int) -> float:
        r, q = nodes[i].target, nodes[i].draft
        tried, total = 1.0, 1.0
        for child in nodes[i].children:
            x = nodes[child].token
            accept = min(1.0, r[x] / q[x])
            total += tried * accept * below(child)
            tried *= 1 - accept
            rest = [max(0.0, a - b) for a, b in zip(r, q, strict=True)]
            r = _normalised(rest) if sum(rest) > 0 else r
            q = _conditioned(q, x) if without else q
        return total

    return below(0)


def _traversal(nodes: list[_Node], without: bool) -> float:
    """Leaf by leaf; a removal changes its parent and, top down, all that remains below that."""
    total, still = 0.0, 1.0
    _reach_below(nodes, 0)
    while True:
        leaf = 0
        while nodes[leaf].children:
            leaf = nodes[leaf].children[0]
        accept = nodes[leaf].reach
        total += still * accept * (nodes[leaf].depth + 1)
        still *= 1 - accept
        if leaf == 0:
            return total
        parent = nodes[nodes[leaf].parent]
        parent.children.remove(leaf)
        a = parent.reach
        rest = [max(0.0, a * b - q) for b, q in zip(parent.target, parent.draft, strict=True)]
        mass = sum(rest)
        if mass > 0:
            parent.target = _normalised(rest)
        if parent.depth > 0:
            parent.reach = mass / (mass + 1 - a) if mass > 0 else 0.0
        if without:
            parent.draft = _conditioned(parent.draft, nodes[leaf].token)
        _reach_below(nodes, nodes[leaf].parent)


def _reach_below(nodes: list[_Node], i: int) -> None:
    for child in nodes[i].children:
        x = nodes[child].token
        nodes[child].reach = min(1.0, nodes[i].reach * nodes[i].target[x] / nodes[i].draft[x])
        _reach_below(nodes, child)


def _normalised(masses: Law) -> Law:
    return [mass / sum(masses) for mass in masses]


def _conditioned(law: Law, token: int) -> Law:
    rest = [0.0 if i == token else mass for i, mass in enumerate(law)]
    return _normalised(rest) if sum(rest) > 0 else rest
