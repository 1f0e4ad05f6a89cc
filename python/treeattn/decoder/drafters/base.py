# SPDX-License-Identifier: Apache-2.0
"""What the decoder asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from treeattn.decoder.drafters.drawn import DraftLaws
from treeattn.decoder.drafters.levels import Worth
from treeattn.decoder.request import Request
from treeattn.tree import DraftTree

SHAPES = ("tree", "chain")


class Drafter(Protocol):
    """A source of draft trees; any object with these methods will do."""

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        """One tree per request, or None where no draft is worth its rows.

        The root is `request.tokens[-1]`. num_nodes: budget per request, the root counted.
        shape: "tree" or "chain". May be called twice in a row with nothing observed in between.
        """
        ...

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        """`tokens` are final: the whole sequence when a request joins, then each step's tokens."""
        ...

    def release(self, request: Request) -> None:
        """The request has left: finished, or set back to join again later."""
        ...


@runtime_checkable
class ReadsFeatures(Drafter, Protocol):
    """A drafter that drafts from the target's hidden states."""

    def observe_features(self, request: Request, features: Tensor) -> None:
        """The target's hidden states at the next tokens of the request, from its first token on.

        features: [count, hidden], after the last norm; the tokens are final, and so is the one
        after each. They come a chunk of the prompt at a time, before the request joins, then after
        each step's `observe`. A request that is given up before it joined is released too.
        """
        ...


@runtime_checkable
class DraftsByLevel(Drafter, Protocol):
    """A drafter that asks a model level by level, and can stop where that does not pay."""

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        """Like `propose`, which the decoder then leaves alone, but asks `worth` before each level.

        worth(requests, frontiers): for the requests that still draft and the nodes they would ask
        the model about, all of one level: which of them to ask. No `worth` when none is left.
        """
        ...


@runtime_checkable
class DrawsTokens(Drafter, Protocol):
    """A drafter that can draw its tokens and say from what law, for multistep, swor, block and
    traversal."""

    def draw(
        self,
        requests: Sequence[Request],
        num_nodes: int,
        shape: str,
        *,
        draws: str,
        temperature: float,
    ) -> tuple[list[DraftTree | None], DraftLaws]:
        """Like `propose`, with siblings drawn as `draws` says ("iid" or "swor").

        A tree's shape, and what is later cut from it, must not depend on the tokens drawn: nothing
        stops such a draft early, and nodes that find no token have `drawn.NO_TOKEN` and are dropped
        before the tree is verified.
        temperature: of the draft's law, > 0.
        """
        ...


class NoDraft:
    """Plain decoding."""

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return [None] * len(requests)

    def draw(
        self,
        requests: Sequence[Request],
        num_nodes: int,
        shape: str,
        *,
        draws: str,
        temperature: float,
    ) -> tuple[list[DraftTree | None], DraftLaws]:
        return [None] * len(requests), DraftLaws([None] * len(requests))

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass
