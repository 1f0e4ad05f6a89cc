# SPDX-License-Identifier: Apache-2.0
"""What a verify step takes on this machine: the decoder's own step, timed phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch

from treeattn.cost_file import CostTables, Rows
from treeattn.decoder import Decoder, Request
from treeattn.decoder.cache import allocate_cache
from treeattn.decoder.sampling import Sampling
from treeattn.decoder.step import verify_step
from treeattn.schedule import Fixed
from treeattn.tree import DraftTree

REPEATS = 5
PHASES = ("verify", "accept", "remap")


def step_costs(
    decoder: Decoder,
    *,
    rows: Sequence[int],
    contexts: Sequence[int],
    batch_size: int = 1,
    seed: int = 0,
    advance: Callable[[str], None] = lambda text: None,
) -> CostTables:
    """Times of verify, accept and remap, medians of interleaved repeats.

    rows: nodes of the whole batch, multiples of batch_size. contexts: tokens before the root. The
    trees are random, and nearly nothing of them is accepted. The KV that they look at is zeros: a
    step takes the same time whatever it holds.
    """
    samples: dict[tuple[int, int], list[dict[str, float]]] = {}
    for _ in range(REPEATS):
        advance(f"timing steps of {min(rows)} to {max(rows)} rows")
        for context in contexts:
            for row, seconds in zip(
                rows, _times(decoder, rows, context, batch_size, seed), strict=True
            ):
                samples.setdefault((row, context), []).append(seconds)

    def ms(phase: str, keys: Sequence[tuple[int, int]]) -> float:
        times = [seconds[phase] for key in keys for seconds in samples[key]]
        return round(1000 * median(times), 4)

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
    block_size, room = 16, 2 * len(rows) * max(rows)
    cache = allocate_cache(
        decoder.config,
        num_blocks=batch_size * (-(-(context + room) // block_size) + 1),
        block_size=block_size,
        dtype=decoder.model.embedding.dtype,
        device=decoder.model.embedding.device,
    )
    cache.k.zero_(), cache.v.zero_()
    generator = torch.Generator().manual_seed(seed)
    requests = []
    for seq in range(batch_size):
        ids = torch.randint(decoder.config.vocab_size, (context + 1,), generator=generator)
        requests.append(Request(seq=seq, tokens=ids.tolist(), limit=context + 1 + room))
        cache.pool.create(seq, requests[-1].tokens[:-1])
    drafter = _RandomTrees(decoder.config.vocab_size, generator)
    for row in (rows[0], *rows):  # the first time warms up
        before = dict(requests[0].stats.seconds)
        verify_step(
            decoder.model,
            cache,
            drafter,
            requests,
            Sampling(),
            schedule=Fixed(max(1, row // batch_size)),
            logprobs=False,
        )
        after = requests[0].stats.seconds
        seconds = {phase: batch_size * (after[phase] - before[phase]) for phase in PHASES}
        if requests[0].stats.steps > 1:
            yield seconds


class _RandomTrees:
    """Trees of exactly the budget, half of whose nodes continue the one before."""

    def __init__(self, vocab_size: int, generator: torch.Generator) -> None:
        self._vocab_size = vocab_size
        self._generator = generator

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return [self._tree(request, num_nodes) for request in requests]

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
