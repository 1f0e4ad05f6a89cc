# SPDX-License-Identifier: Apache-2.0
"""What a step takes on this machine: the decoder's own step and its drafter, timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

import torch

from treeattn.cost_file import CostTables, Rows
from treeattn.decoder import Decoder, Drafter, Request, Stats
from treeattn.decoder.cache import allocate_cache
from treeattn.decoder.sampling import Sampling
from treeattn.decoder.step import verify_step
from treeattn.schedule import Fixed
from treeattn.tree import DraftTree
from treeattn.tune.record import record

REPEATS = 5
PHASES = ("verify", "accept", "remap")
CHAIN_LEVELS = (1, 2, 4, 8)
WIDE_NODES = 32
DRAFT_TOKENS = 24  # most of them leave room for the longest chain
LEAST_MS = 1e-3  # a time must be above 0
MOST_LEVELS, MOST_WIDTH = 64, 1 << 20


def step_costs(
    decoder: Decoder,
    *,
    rows: Sequence[int],
    contexts: Sequence[int],
    batch_size: int = 1,
    seed: int = 0,
) -> CostTables:
    """Times of verify, accept and remap, medians of interleaved repeats.

    rows: nodes of the whole batch, at least batch_size. contexts: tokens before the root, of every
    request. The trees are random, and nearly nothing of them is accepted. The KV that they look at
    is zeros: a step takes the same time whatever it holds.
    """
    if min(rows) < batch_size:
        raise ValueError(f"rows must be at least batch_size, {batch_size}, got {min(rows)}")
    samples: dict[tuple[int, int], list[dict[str, float]]] = {}
    for _ in range(REPEATS):
        for context in contexts:
            for row, seconds in zip(
                rows, _times(decoder, rows, context, batch_size, seed), strict=True
            ):
                samples.setdefault((row, context), []).append(seconds)

    def ms(phase: str, keys: Sequence[tuple[int, int]]) -> float:
        times = [seconds[phase] for key in keys for seconds in samples[key]]
        return max(LEAST_MS, round(1000 * median(times), 4))

    def by_rows(phase: str) -> Rows:
        return tuple((row, ms(phase, [(row, context) for context in contexts])) for row in rows)

    note = (
        f"measured: medians of {REPEATS}, {batch_size} requests, {torch.get_num_threads()} threads"
    )
    return CostTables(
        verify=tuple((*key, ms("verify", [key])) for key in samples),
        accept=by_rows("accept"),
        remap=by_rows("remap"),
        about=dict.fromkeys(PHASES, note),
    )


@torch.inference_mode()
def _times(
    decoder: Decoder, rows: Sequence[int], context: int, batch_size: int, seed: int
) -> Iterator[dict[str, float]]:
    """Seconds by phase of one step at each number of rows."""
    block_size, room = 16, 2 * len(rows) * -(-max(rows) // batch_size)
    cache = allocate_cache(
        decoder.config,
        num_blocks=batch_size * (-(-(context + room) // block_size) + 1),
        block_size=block_size,
        dtype=decoder.model.embedding.dtype,
        device=decoder.model.embedding.device,
    )
    cache.k.zero_()
    cache.v.zero_()
    generator = torch.Generator().manual_seed(seed)
    requests = []
    for seq in range(batch_size):
        ids = torch.randint(decoder.config.vocab_size, (context + 1,), generator=generator)
        requests.append(Request(seq=seq, tokens=ids.tolist(), limit=context + 1 + room))
        cache.pool.create(seq, requests[-1].tokens[:-1])
    drafter = _RandomTrees(decoder.config.vocab_size, generator)

    def step(num_rows: int) -> dict[str, float]:
        drafter.num_rows = num_rows
        for request in requests:
            request.stats = Stats()
        verify_step(
            decoder.model,
            cache,
            drafter,
            requests,
            Sampling(),
            schedule=Fixed(-(-num_rows // batch_size)),
            logprobs=False,
        )
        return {phase: sum(r.stats.seconds[phase] for r in requests) for phase in PHASES}

    step(rows[0])  # warms up
    for num_rows in rows:
        yield step(num_rows)


class _RandomTrees:
    """Trees of `num_rows` nodes in all, half of whose nodes continue the one before."""

    def __init__(self, vocab_size: int, generator: torch.Generator) -> None:
        self.num_rows = 0
        self._vocab_size = vocab_size
        self._generator = generator

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        each, more = divmod(self.num_rows, len(requests))
        return [self._tree(request, each + (i < more)) for i, request in enumerate(requests)]

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        pass

    def release(self, request: Request) -> None:
        pass

    def _tree(self, request: Request, num_nodes: int) -> DraftTree:
        drawn = torch.randint(self._vocab_size, (num_nodes, 2), generator=self._generator).tolist()
        parents = [-1]
        for node, (_, choice) in enumerate(drawn[1:]):
            parents.append(node if choice % 2 else choice % (node + 1))
        tokens = [request.tokens[-1], *(token for token, _ in drawn[1:])]
        return DraftTree(tokens, parents).dfs()


def draft_costs(
    decoder: Decoder, drafter: Drafter, prompts: Sequence[Sequence[int]]
) -> tuple[Rows, str]:
    """The table `draft` of CostTables, and a word on where it comes from.

    Calls of the drafter are timed whole: chains of growing length tell what each level takes, one
    large tree what a wide level does.
    """
    chain_ms = {0: 0.0}
    for length in CHAIN_LEVELS:
        chain_ms[length] = median(_draft_ms(decoder, drafter, prompts, length + 1, "chain")[0])
    levels: list[float] = []
    for before, length in pairwise(chain_ms):
        each = (chain_ms[length] - chain_ms[before]) / (length - before)
        levels += [max(LEAST_MS, each)] * (length - before)
    levels += levels[-1:] * (MOST_LEVELS - len(levels))
    times, trees = _draft_ms(decoder, drafter, prompts, WIDE_NODES, "tree")
    depth = max((1, *(int(tree.depths.max(initial=0)) for tree in trees)))
    wide = max(1.0, median(times) / sum(levels[:depth]))
    width = max(2, WIDE_NODES // depth)
    points: list[tuple[float, ...]] = []
    for level, ms in enumerate(levels, start=1):
        wide_ms = round(ms * wide, 4)
        points += [(level, 1, round(ms, 4)), (level, width, wide_ms), (level, MOST_WIDTH, wide_ms)]
    return tuple(points), (
        f"measured: chains of {CHAIN_LEVELS} levels and a tree of {WIDE_NODES} nodes; assumed: "
        f"levels wider than {width} take what those do, and levels past {CHAIN_LEVELS[-1]} what "
        f"that one does"
    )


def _draft_ms(
    decoder: Decoder, drafter: Drafter, prompts: Sequence[Sequence[int]], num_nodes: int, shape: str
) -> tuple[tuple[float, ...], list[DraftTree]]:
    recorded = record(
        decoder,
        drafter,
        prompts,
        [str(index) for index in range(len(prompts))],
        num_nodes=num_nodes,
        shape=shape,
        max_new_tokens=DRAFT_TOKENS,
    )
    drafts = [draft for recording in recorded.recordings for draft in recording.drafts]
    return recorded.draft_ms, [draft for draft in drafts if draft is not None]
