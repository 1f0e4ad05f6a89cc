# SPDX-License-Identifier: Apache-2.0
"""Looks over a drafter's shoulder, to draw what one step proposed and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeattn.draw import Picture
from treeattn.tree import DraftTree


class Recorder:
    """A drafter that passes everything on to `inner` and keeps the trees."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.observe_features = getattr(inner, "observe_features", None)
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


def pictures(
    trees: Mapping[int, DraftTree], sequence: Sequence[int], tokenizer: Any, name: str
) -> Iterator[Picture]:
    """One picture per recorded step that ended with a bonus token.

    trees: by the length of the sequence they continue. sequence: prompt and output ids.
    """

    def label(token: int) -> str:
        text: str = tokenizer.decode([token])
        return text or tokenizer.vocabulary.get(token, "")  # a special token has no text

    for length, tree in trees.items():
        accepted = tree.follow(sequence[length:])
        bonus = length + len(accepted) - 1
        if bonus >= len(sequence):
            continue
        yield Picture(
            labels=tuple(label(int(token)) for token in tree.tokens),
            parents=tuple(int(parent) for parent in tree.parents),
            scores=None if tree.scores is None else tuple(map(float, tree.scores)),
            accepted=tuple(accepted),
            bonus=label(sequence[bonus]),
            title=f"{name}: {len(accepted) - 1} of {len(tree.tokens) - 1} drafted tokens accepted",
        )


def telling(picture: Picture) -> tuple[bool, int, int]:
    """How much a picture shows: first that it branches, then accepted tokens, then branches."""
    num_leaves = len(picture.parents) - len({p for p in picture.parents if p >= 0})
    return num_leaves > 1, len(picture.accepted), num_leaves
