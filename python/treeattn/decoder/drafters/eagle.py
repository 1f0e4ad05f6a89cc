# SPDX-License-Identifier: Apache-2.0
"""Dynamic trees from a head that continues the target's hidden states, with paged KV of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters.drawn import DraftLaws, DrawnTree, plant
from treeattn.decoder.drafters.levels import Worth, every_level, levels_worth
from treeattn.decoder.eagle_head import EagleHead
from treeattn.decoder.request import Request
from treeattn.kv_cache import OutOfBlocks
from treeattn.schedule.eagle2 import Expansion
from treeattn.schedule.levels import everything
from treeattn.tree import DraftTree, pack

_Growing = TypeVar("_Growing", Expansion, DrawnTree)
MAX_PENDING = 32  # features that wait for the next draft; more, a prompt's, are read at once


class EagleDraft:
    """Drafts `schedule.eagle2` trees with `head` on `cache`, which must be its own.

    top_k: nodes of a level and children of each; depth: levels. A chain takes the best child only.
    Below the root the head continues its own outputs, so what it writes there is approximate: all
    of it is dropped with the draft, and the tokens that stay are read again from the target's
    features. A request that finds no room in `cache` goes without a draft; when that befell its
    prompt, until it leaves.
    """

    def __init__(
        self, head: EagleHead, cache: PagedCache, *, top_k: int = 8, depth: int = 5
    ) -> None:
        for name, value in (("top_k", top_k), ("depth", depth)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self._head = head
        self._cache = cache
        self._target_ids = torch.tensor(head.target_ids)
        self._top_k = top_k
        self._depth = depth
        # Features of rows that are not committed, [count, hidden], by sequence. The last is the
        # root's: its row is run again with every draft, which grows from its output.
        self._pending: dict[int, Tensor] = {}
        self._without_room: set[int] = set()

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return self.propose_while(requests, num_nodes, shape, everything)

    def propose_while(
        self, requests: Sequence[Request], num_nodes: int, shape: str, worth: Worth
    ) -> list[DraftTree | None]:
        top_k = min(self._top_k if shape == "tree" else 1, num_nodes - 1)

        def plan(request: Request) -> tuple[Expansion, int] | None:
            depth = min(self._depth, request.room - 1)  # the token after the last is the target's
            if top_k < 1 or depth < 1:
                return None
            root = request.tokens[-1]
            expansion = Expansion(root, top_k=top_k, depth=depth, num_nodes=num_nodes)
            return expansion, top_k * (depth - 1)  # the last level is drafted, but not run

        grown = self._draft(requests, plan, lambda trees: levels_worth(trees, worth))
        return [None if tree is None else tree.best() for tree in grown]

    def draw(
        self,
        requests: Sequence[Request],
        num_nodes: int,
        shape: str,
        *,
        draws: str,
        temperature: float,
    ) -> tuple[list[DraftTree | None], DraftLaws]:
        def plan(request: Request) -> tuple[DrawnTree, int]:
            drawn = plant(
                request,
                num_nodes,
                shape,
                draws=draws,
                temperature=temperature,
                max_levels=self._depth,
            )
            return drawn, num_nodes - 1

        grown = self._draft(requests, plan, every_level)
        return (
            [None if tree is None else tree.best() for tree in grown],
            DraftLaws(
                [None if tree is None else tree.laws() for tree in grown],
                ids=self._target_ids,
            ),
        )

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def observe_features(self, request: Request, features: Tensor) -> None:
        seq = request.seq
        if seq in self._without_room or len(features) == 0:
            return
        if seq not in self._pending:
            self._cache.pool.create(seq, [])
            self._pending[seq] = features[:0]
        self._pending[seq] = torch.cat((self._pending[seq], features))
        if len(self._pending[seq]) > MAX_PENDING:
            try:
                self._read_pending(request)
            except OutOfBlocks:
                self.release(request)
                self._without_room.add(seq)

    def release(self, request: Request) -> None:
        self._without_room.discard(request.seq)
        if self._pending.pop(request.seq, None) is not None:
            self._cache.pool.free(request.seq)

    def _draft(
        self,
        requests: Sequence[Request],
        plan: Callable[[Request], tuple[_Growing, int] | None],
        levels: Callable[[Mapping[Request, _Growing]], Iterator[Mapping[Request, _Growing]]],
    ) -> list[_Growing | None]:
        """Grow a tree for every request that has features and room, in passes that they share.

        plan: the tree to grow, and how many of its nodes below the root may have to be run.
        levels: those of the trees that want to grow, level by level.
        """
        drafts: dict[Request, _Draft[_Growing]] = {}
        for request in requests:
            planned = plan(request) if request.seq in self._pending else None
            if planned is not None and planned[0].frontier and self._reserve(request, planned[1]):
                features = self._pending[request.seq]
                chain = request.tokens[-len(features) :]
                drafts[request] = _Draft(request.seq, chain, features, planned[0], features[:0])
        for growing in levels({request: draft.growing for request, draft in drafts.items()}):
            self._grow([drafts[request] for request in growing])
        for draft in drafts.values():
            if len(draft.outputs) > 0:  # else nothing was run: the features wait on
                self._cache.pool.commit(draft.seq, draft.chain[:-1])
                self._pending[draft.seq] = draft.features[-1:].clone()
        return [drafts[r].growing if r in drafts else None for r in requests]

    def _reserve(self, request: Request, num_nodes: int) -> bool:
        """Find room for the rows of all pending features and `num_nodes` nodes below the root."""
        num_committed = self._cache.pool.context_len(request.seq)
        num_pending = len(self._pending[request.seq])
        if num_committed + num_pending != len(request.tokens) - 1:
            raise ValueError(
                f"features must come for every token of a request but the last, "
                f"{len(request.tokens) - 1}; {num_committed + num_pending} came"
            )
        try:
            self._cache.reserve(request.seq, num_pending + num_nodes)
        except OutOfBlocks:
            return False
        return True

    def _grow(self, drafts: Sequence[_Draft[_Growing]]) -> None:
        """One level of every draft, in one pass of the head."""
        cache, head = self._cache, self._head
        trees = [draft.tree() for draft in drafts]
        seqs = [draft.seq for draft in drafts]
        batch = pack(trees, device=cache.k.device)
        plan = cache.plan(batch, seqs, [cache.pool.context_len(seq) for seq in seqs])

        starts = accumulate((len(tree) for tree in trees), initial=0)
        rows: list[int] = []  # of the nodes that are not run yet
        inputs: list[Tensor] = []
        for draft, tree, start in zip(drafts, trees, starts, strict=False):
            rows += range(start + len(draft.outputs), start + len(tree))
            inputs.append(draft.inputs(tree))
        index = torch.tensor(rows, device=cache.k.device)
        outputs = head.forward(
            batch.tokens[index], torch.cat(inputs), plan, cache.k[0], cache.v[0], index
        )

        for draft, output in zip(drafts, torch.split(outputs, [*map(len, inputs)]), strict=True):
            draft.outputs = torch.cat((draft.outputs, output))
        tips: list[Tensor] = [draft.tips() for draft in drafts]
        laws = torch.split(head.log_probs(torch.cat(tips)), [*map(len, tips)])
        for draft, law in zip(drafts, laws, strict=True):
            draft.growing.expand(law, head.target_ids)

    def _read_pending(self, request: Request) -> None:
        """Commit the rows of all pending features but the root's. Raises OutOfBlocks."""
        cache, seq = self._cache, request.seq
        features = self._pending[seq][:-1]
        start = cache.pool.context_len(seq)
        tokens = request.tokens[start + 1 : start + 1 + len(features)]
        cache.reserve(seq, len(tokens))
        batch = pack([DraftTree.chain(tokens)], device=cache.k.device)
        plan = cache.plan(batch, [seq], [start])
        rows = torch.arange(len(tokens), device=cache.k.device)
        self._head.forward(batch.tokens, features, plan, cache.k[0], cache.v[0], rows)
        cache.pool.commit(seq, tokens)
        self._pending[seq] = self._pending[seq][-1:].clone()


@dataclass
class _Draft(Generic[_Growing]):
    """The draft of one request on its way.

    Its rows are the tokens since the last draft, `chain`, which ends with the root, then what the
    growing tree has below it: one tree, whose slots follow the committed ones.
    """

    seq: int
    chain: list[int]
    features: Tensor  # [len(chain), hidden], the target's
    growing: _Growing
    outputs: Tensor  # [rows run so far, hidden]

    def tree(self) -> DraftTree:
        """All rows, those that are not run yet last."""
        above, grown = len(self.chain) - 1, self.growing.tree()
        return DraftTree(
            np.concatenate((self.chain, grown.tokens[1:])),
            np.concatenate((np.arange(-1, above), grown.parents[1:] + above)),
        )

    def inputs(self, tree: DraftTree) -> Tensor:
        """The features of the rows that are not run yet: the target's, then the head's own."""
        num_run = len(self.outputs)
        if num_run == 0:
            return self.features
        return self.outputs[tree.parents[num_run:].tolist()]

    def tips(self) -> Tensor:
        """The outputs at the frontier, whose laws the tree wants next."""
        above = len(self.chain) - 1
        return self.outputs[[above + node for node in self.growing.frontier]]
