# SPDX-License-Identifier: Apache-2.0
"""Self draft: the target's first layers, its last norm and its head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters.expansion import grow_trees
from treeattn.decoder.forward import node_log_probs
from treeattn.decoder.model import Model
from treeattn.decoder.request import Request
from treeattn.tree import DraftTree


class LayerSkip:
    """Drafts with the first `num_layers` layers of the target, on the target's own KV.

    The KV those layers hold of committed tokens is what the draft would compute. Draft nodes lie
    in the slots reserved behind them, where the verify pass then writes all layers anew.
    draft_probs: request id -> [nodes, V], the laws of the last proposal's children.
    """

    def __init__(self, model: Model, cache: PagedCache, num_layers: int | None = None) -> None:
        self._model = model
        self._cache = cache
        self._num_layers = num_layers or max(1, model.config.num_layers // 2)
        self.draft_probs: dict[int, Tensor] = {}

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        seqs = [request.seq for request in requests]
        trees, laws = grow_trees(
            [request.tokens[-1] for request in requests],
            num_nodes,
            shape,
            lambda trees: node_log_probs(
                self._model, self._cache, trees, seqs, num_layers=self._num_layers
            ),
        )
        self.draft_probs = dict(zip(seqs, laws, strict=False))
        return [*trees]

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        self.draft_probs.pop(request.seq, None)
