# SPDX-License-Identifier: Apache-2.0
"""One verify step: draft, verify, accept, remap, commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters import Drafter, ReadsFeatures
from treeattn.decoder.model import Model
from treeattn.decoder.output import append_tokens
from treeattn.decoder.proposal import propose
from treeattn.decoder.request import Request, Stats
from treeattn.decoder.sampling import Sampling, path_logprobs, path_rows
from treeattn.ops import AcceptedPath, remap_kv
from treeattn.plan import TreePlan
from treeattn.schedule import Schedule
from treeattn.tree import pack

STATUS_TEXT = {1: "non-finite logits", 2: "no token left to draw", 4: "an invalid tree"}


def verify_step(
    model: Model,
    cache: PagedCache,
    drafter: Drafter,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    schedule: Schedule,
    logprobs: bool,
) -> None:
    """Decode at least one token of every request, or end it.

    Raises OutOfBlocks, with nothing committed, when the trees find no room.
    """
    clock = _Clock()
    draft = propose(drafter, requests, sampling, schedule)
    batch = pack(draft.trees, device=cache.k.device)
    clock.lap("draft")

    seqs = [request.seq for request in requests]
    for seq, tree in zip(seqs, draft.trees, strict=True):
        cache.reserve(seq, len(tree))
    plan = cache.plan(batch, seqs, [cache.pool.context_len(seq) for seq in seqs])
    logits, hidden = model.forward(batch.tokens, plan, cache.k, cache.v)
    clock.lap("verify")

    accepted = sampling.accept(logits, batch, plan, requests, draft.laws, schedule.counts)
    features = path_rows(hidden, accepted, batch)
    law = path_logprobs(logits, accepted, batch).tolist() if logprobs else None
    clock.lap("accept")

    remap_kv(cache.k, cache.v, plan, accepted)
    results = list(_read_back(accepted, plan))
    _check_status(requests, results)
    for b, (emitted, _, table) in enumerate(results):
        request = requests[b]
        root = request.tokens[-1]
        kept = append_tokens(request, emitted)
        num_owned = len(cache.pool.block_table(request.seq))
        cache.pool.commit(request.seq, [root, *request.tokens[-kept:-1]], table[:num_owned])
        drafter.observe(request, request.tokens[-kept:])
        schedule.observe(request, request.tokens[-kept:])
        if isinstance(drafter, ReadsFeatures):
            drafter.observe_features(request, features[b, :kept])
        if law is not None:
            request.logprobs += law[b][:kept]
        num_accepted = min(kept, len(emitted) - 1)
        request.stats.add(Stats(steps=1, drafted=len(draft.trees[b]) - 1, accepted=[num_accepted]))
    clock.lap("remap")
    clock.share(requests)


def _read_back(
    accepted: AcceptedPath, plan: TreePlan
) -> Iterator[tuple[list[int], int, list[int]]]:
    """Emitted tokens, status and block table of each request: the step's one read of the device."""
    width = accepted.emitted.shape[1]
    counts = torch.stack((accepted.num_accepted, accepted.status), 1)
    for row in torch.cat((accepted.emitted, counts, plan.block_table), 1).tolist():
        num_accepted, status = row[width : width + 2]
        yield row[: num_accepted + 1], status, row[width + 2 :]


def _check_status(
    requests: Sequence[Request], results: Sequence[tuple[list[int], int, list[int]]]
) -> None:
    """Raise, before anything is committed, when the target gave a request no token."""
    for b, (request, (_, status, _)) in enumerate(zip(requests, results, strict=True)):
        if status != 0:
            raise RuntimeError(f"request {b}: {STATUS_TEXT[status]} at token {len(request.tokens)}")


class _Clock:
    """Wall time of the phases of one step."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        now = perf_counter()
        self._seconds[phase] = now - self._last
        self._last = now

    def share(self, requests: Sequence[Request]) -> None:
        for request in requests:
            for phase, seconds in self._seconds.items():
                request.stats.seconds[phase] += seconds / len(requests)
