# SPDX-License-Identifier: Apache-2.0
"""Self draft: the target's first layers, its last norm and its head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters.drawn import DraftLaws, grow, plant
from treeattn.decoder.drafters.expansion import grow_trees
from treeattn.decoder.drafters.levels import Worth
from treeattn.decoder.forward import node_log_probs
from treeattn.decoder.model import Model
from treeattn.decoder.request import Request
from treeattn.schedule.levels import everything
from treeattn.tree import DraftTree


class LayerSkip:
    """Drafts with the first `num_layers` layers of the target, on the target's own KV.

    The KV those layers hold of committed tokens is what the draft would compute. Draft nodes lie
    in the slots reserved behind them, where the verify pass then writes all layers anew.
    """

    def __init__(self, model: Model, cache: PagedCache, num_layers: int | None = None) -> None:
        self._model = model
        self._cache = cache
        self._num_layers = num_layers or max(1, model.config.num_layers // 2)

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return self.propose_while(requests, num_nodes, shape, everything)

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        return [*grow_trees(requests, num_nodes, shape, self._log_probs, worth)]

    def draw(
        self,
        requests: Sequence[Request],
        num_nodes: int,
        shape: str,
        *,
        draws: str,
        temperature: float,
    ) -> tuple[list[DraftTree | None], DraftLaws]:
        drawn = {
            request: plant(request, num_nodes, shape, draws=draws, temperature=temperature)
            for request in requests
        }
        return grow(requests, drawn, self._log_probs)

    def _log_probs(self, requests: Sequence[Request], trees: Sequence[DraftTree]) -> list[Tensor]:
        seqs = [request.seq for request in requests]
        return node_log_probs(self._model, self._cache, trees, seqs, num_layers=self._num_layers)

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass
