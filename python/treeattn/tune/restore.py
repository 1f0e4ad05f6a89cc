# SPDX-License-Identifier: Apache-2.0
"""What it takes to roll the KV cache onto the accepted path, with and without what avoids it."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from time import perf_counter

import torch

from treeattn.accept import accept_path
from treeattn.decoder import Decoder
from treeattn.decoder.cache import allocate_cache
from treeattn.ops import remap_kv
from treeattn.plan import TreePlan
from treeattn.tree import DraftTree, pack

ACCEPTED = 4
NUM_NODES = 32
CONTEXT = 200
REPEATS = 25
# What makes the path lie where it lies: (name, block size, whether its nodes come first).
CASES = (
    ("depth-first order, the likeliest path accepted", 16, True),
    ("nodes in another order", 16, False),
    ("nodes in another order, blocks of 1: re-pointed", 1, False),
)


def restore_ms(decoder: Decoder) -> dict[str, dict[str, float]]:
    """For each of CASES: median milliseconds of `remap_kv` over all layers, and rows moved.

    A tree of NUM_NODES nodes of which a path of ACCEPTED is accepted. Interleaved repeats.
    """
    prepared = {name: _Case(decoder, size, in_order) for name, size, in_order in CASES}
    times: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(REPEATS):
        for name, case in prepared.items():
            times[name].append(case.run())
    return {
        name: {"ms": round(1000 * median(seconds), 4), "rows_moved": prepared[name].moved}
        for name, seconds in times.items()
    }


class _Case:
    """One cache, and a step whose accepted path lies in it as the case says."""

    def __init__(self, decoder: Decoder, block_size: int, in_order: bool) -> None:
        stride = 1 if in_order else (NUM_NODES - 1) // ACCEPTED
        path = [stride * depth for depth in range(ACCEPTED + 1)]
        tokens, parents = [0] * NUM_NODES, [-1] + [0] * (NUM_NODES - 1)
        logits = torch.zeros(NUM_NODES, ACCEPTED + 2)  # the bonus token is 0
        for depth, (above, node) in enumerate(pairwise(path), start=1):
            parents[node] = above
            tokens[node] = depth
            logits[above, depth] = 1.0
        self._batch = pack([DraftTree(tokens, parents)])
        self._cache = allocate_cache(
            decoder.config,
            num_blocks=2 + (CONTEXT + NUM_NODES) // block_size,
            block_size=block_size,
            dtype=decoder.model.embedding.dtype,
            device=decoder.model.embedding.device,
        )
        self._cache.k.zero_()
        self._cache.v.zero_()
        self._cache.pool.create(0, [0] * CONTEXT)
        self._cache.reserve(0, NUM_NODES)
        self._accepted = accept_path(logits, self._batch.tokens, self._plan())
        self.moved = 0

    def run(self) -> float:
        """Seconds; every run starts from the same table."""
        plan = self._plan()
        start = perf_counter()
        moved = remap_kv(self._cache.k, self._cache.v, plan, self._accepted)
        seconds = perf_counter() - start
        self.moved = int(moved[0])
        return seconds

    def _plan(self) -> TreePlan:
        return self._cache.plan(self._batch, [0], [CONTEXT])
