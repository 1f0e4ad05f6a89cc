# SPDX-License-Identifier: Apache-2.0
"""Looks over a drafter's shoulder, to draw what one step proposed and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeattn.draw import Picture
from treeattn.tree import DraftTree


class Recorder:
    """A drafter that passes everything on to `inner` and keeps the trees."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.trees: dict[int, DraftTree] = {}  # by the length of the sequence they continue

    def propose(
        self, requests: Sequence[Any], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        trees: list[DraftTree | None] = self._inner.propose(requests, num_nodes, shape)
        for request, tree in zip(requests, trees, strict=True):
            if tree is not None:
                self.trees[len(request.tokens)] = tree
        return trees

    def observe(self, request: Any, tokens: Sequence[int]) -> None:
        self._inner.observe(request, tokens)

    def release(self, request: Any) -> None:
        self._inner.release(request)


def best_picture(
    trees: dict[int, DraftTree], sequence: Sequence[int], tokenizer: Any, name: str
) -> Picture | None:
    """The step that shows most: many accepted tokens in a tree that branches.

    trees: by the length of the sequence they continue. sequence: prompt and output ids.
    """
    best: tuple[int, int] | None = None
    for length, tree in trees.items():
        accepted = _accepted_path(tree, sequence[length:])
        if length + len(accepted) > len(sequence):
            continue  # the output ended before a bonus token
        leaves = len(tree.tokens) - len({int(parent) for parent in tree.parents[1:]})
        score = len(accepted) * min(leaves, 4)
        if best is None or score > best[0]:
            best = score, length
    if best is None:
        return None
    tree = trees[best[1]]
    accepted = _accepted_path(tree, sequence[best[1] :])

    def label(token: int) -> str:
        text: str = tokenizer.decode([token])
        return text or tokenizer.vocabulary.get(token, "")  # a special token has no text

    scores = None if tree.scores is None else tuple(float(score) for score in tree.scores)
    return Picture(
        labels=tuple(label(int(token)) for token in tree.tokens),
        parents=tuple(int(parent) for parent in tree.parents),
        scores=scores,
        accepted=tuple(accepted),
        bonus=label(sequence[best[1] + len(accepted) - 1]),
        title=f"{name}: {len(accepted) - 1} of {len(tree.tokens) - 1} drafted tokens accepted",
    )


def _accepted_path(tree: DraftTree, emitted: Sequence[int]) -> list[int]:
    """Node ids, root first, that hold what was emitted; siblings with one token: the first."""
    path = [0]
    for token in emitted:
        following = [i for i in tree.children(path[-1]) if int(tree.tokens[i]) == token]
        if not following:
            break
        path.append(following[0])
    return path
