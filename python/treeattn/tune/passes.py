# SPDX-License-Identifier: Apache-2.0
"""How often a drafter runs its model."""

from __future__ import annotations

from collections.abc import Sequence

from treeattn.decoder import ReadsFeatures, Request
from treeattn.decoder.drafters import DraftsByLevel
from treeattn.decoder.drafters.levels import Worth
from treeattn.schedule.levels import Frontier
from treeattn.tree import DraftTree


class CountsPasses:
    """`inner` for greedy decoding. passes: levels for which its model was run, for one request or
    several."""

    def __init__(self, inner: DraftsByLevel) -> None:
        self._inner = inner
        self.passes = 0
        self.propose, self.observe, self.release = inner.propose, inner.observe, inner.release
        if isinstance(inner, ReadsFeatures):
            self.observe_features = inner.observe_features

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        def counted(requests: Sequence[Request], frontiers: Sequence[Frontier]) -> list[list[bool]]:
            asked = worth(requests, frontiers)
            self.passes += any(map(any, asked))
            return asked

        return self._inner.propose_while(requests, num_nodes, shape, counted)
