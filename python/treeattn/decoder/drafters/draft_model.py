# SPDX-License-Identifier: Apache-2.0
"""A smaller model of the same vocabulary, with paged KV of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters.drawn import DraftLaws, grow, plant
from treeattn.decoder.drafters.expansion import grow_trees
from treeattn.decoder.drafters.levels import Worth
from treeattn.decoder.forward import node_log_probs, prefill
from treeattn.decoder.model import Model
from treeattn.decoder.request import Request
from treeattn.kv_cache import OutOfBlocks
from treeattn.schedule.levels import everything
from treeattn.tree import DraftTree


class DraftModel:
    """Drafts with `model` on `cache`, which must be its own.

    vocab_size: the target's; ids past it are never drafted. The draft's KV follows the target's:
    what a step drafted is dropped, and the tokens it kept are read with the next root.
    A request that finds no room in `cache` goes without a draft.
    """

    def __init__(self, model: Model, cache: PagedCache, vocab_size: int) -> None:
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._seqs: set[int] = set()

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return self.propose_while(requests, num_nodes, shape, everything)

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        drafted = [request for request in requests if self._has_room(request, num_nodes)]
        trees: list[DraftTree] = []
        if drafted and num_nodes > 1:
            trees = grow_trees(drafted, num_nodes, shape, self._log_probs, worth)
        found = {request.seq: tree for request, tree in zip(drafted, trees, strict=False)}
        return [found.get(request.seq) for request in requests]

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
            if num_nodes > 1 and self._has_room(request, num_nodes)
        }
        return grow(requests, drawn, self._log_probs)

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        if request.seq in self._seqs:
            self._seqs.remove(request.seq)
            self._cache.pool.free(request.seq)

    def _has_room(self, request: Request, num_nodes: int) -> bool:
        """Reserve for the tree and the tokens before it; reads the prompt of a new request."""
        pool, seq = self._cache.pool, request.seq
        try:
            if seq not in self._seqs:
                pool.create(seq, request.tokens[:-1])
                self._seqs.add(seq)
                done = 0
                while done < len(request.tokens) - 1:
                    chunk = prefill(self._model, self._cache, seq, request.tokens[:-1], done)
                    done += len(chunk)
            behind = len(request.tokens) - 1 - pool.context_len(seq)
            self._cache.reserve(seq, behind + num_nodes)
        except OutOfBlocks:
            return False
        return True

    def _log_probs(self, requests: Sequence[Request], trees: list[DraftTree]) -> list[Tensor]:
        """The law at every node, over the target's ids; see `_root_log_probs` for the first."""
        if len(trees[0]) == 1:
            laws = self._root_log_probs(requests)
        else:
            laws = node_log_probs(self._model, self._cache, trees, [r.seq for r in requests])
        if self._model.config.vocab_size <= self._vocab_size:
            return laws
        return [law[:, : self._vocab_size].log_softmax(-1) for law in laws]

    def _root_log_probs(self, requests: Sequence[Request]) -> list[Tensor]:
        """The law at each root, [1, V]; reads and commits the tokens kept since last time."""
        pool = self._cache.pool
        seqs = [request.seq for request in requests]
        chains = [request.tokens[pool.context_len(request.seq) :] for request in requests]
        trees = [DraftTree.chain(chain) for chain in chains]
        laws = node_log_probs(self._model, self._cache, trees, seqs)
        for seq, chain in zip(seqs, chains, strict=True):
            pool.commit(seq, chain[:-1])
        return [law[-1:] for law in laws]
