# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: requests join, are prefilled in chunks, decode together and leave."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter

import torch

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.drafters import Drafter, ReadsFeatures
from treeattn.decoder.forward import PREFILL_CHUNK, prefill
from treeattn.decoder.model import Model
from treeattn.decoder.output import finish_text
from treeattn.decoder.request import Request
from treeattn.decoder.sampling import Sampling
from treeattn.decoder.step import verify_step
from treeattn.kv_cache import OutOfBlocks
from treeattn.schedule import Fixed, Schedule

MAX_ROWS = 256  # nodes of one verify step, over all requests
ALONE = Fixed(1)
PREFILL_BUDGET = 2 * PREFILL_CHUNK


@dataclass(eq=False)
class Engine:
    """Decodes requests together on one cache.

    prefill_budget: prompt tokens read between two verify steps, to the end of a chunk; None:
    PREFILL_BUDGET.

    When blocks run out the youngest request is set back: it gives up its blocks and is prefilled
    again, prompt and output, when there is room. Its tokens stay the same.
    """

    model: Model
    cache: PagedCache
    drafter: Drafter
    sampling: Sampling
    schedule: Schedule
    logprobs: bool = False
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: Request | None = None
    running: list[Request] = field(default_factory=list)
    prefill_budget: float | None = None

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError when the cache could never hold it."""
        if request.room <= 0:
            request.finish_reason = "length"
            return
        needed = self.cache.num_blocks_for(request.limit)
        if needed > self.cache.num_blocks:
            raise ValueError(
                f"num_blocks must be at least {needed} for a request of up to {request.limit} "
                f"tokens with block_size {self.cache.block_size}, got {self.cache.num_blocks}"
            )
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self.prefilling)

    @torch.inference_mode()
    def step(self) -> None:
        """Read some prompt tokens, then decode one step of every running request."""
        budget = PREFILL_BUDGET if self.prefill_budget is None else self.prefill_budget
        while budget > 0 and self._admit():
            budget -= self._prefill_chunk()
        if self.running:
            self._verify()
        for request in [r for r in self.running if r.finish_reason is not None]:
            finish_text(request)
            self._leave(request)

    def close(self) -> None:
        """Give back what unfinished requests hold."""
        for request in [*self.running]:
            self._leave(request)
        if self.prefilling is not None:
            self._give_up_prefilling()
        self.waiting.clear()

    def _admit(self) -> bool:
        """Whether a request is being prefilled; takes the next one that finds room if none is."""
        if self.prefilling is not None:
            return True
        if not self.waiting or len(self.running) >= self.schedule.max_requests(MAX_ROWS):
            return False
        request = self.waiting[0]
        # All of them together, with what the running requests have already.
        needed = sum(map(self._step_blocks, [*self.running, request]))
        owned = sum(len(self.cache.pool.block_table(running.seq)) for running in self.running)
        if self.running and needed - owned > self.cache.pool.num_free:
            return False
        self.cache.pool.create(request.seq, request.tokens[:-1])
        self.prefilling = self.waiting.popleft()
        self.prefilling.num_prefilled = 0
        return True

    def _step_blocks(self, request: Request) -> int:
        """Blocks of a request while it verifies the largest tree, and one to grow into; never more
        than it may ever need."""
        most_nodes = self.schedule.max_nodes
        now, ever = (
            self.cache.num_blocks_for(tokens + most_nodes)
            for tokens in (request.context, request.limit)
        )
        return min(now + 1, ever)

    def _prefill_chunk(self) -> int:
        """Read one chunk of the prompt; the request starts to run after the last one."""
        request = self.prefilling
        assert request is not None
        start, prompt = perf_counter(), request.tokens[:-1]
        before = request.num_prefilled
        if before < len(prompt):
            features = prefill(self.model, self.cache, request.seq, prompt, before)
            request.num_prefilled += len(features)
            if isinstance(self.drafter, ReadsFeatures):
                self.drafter.observe_features(request, features)
        if request.num_prefilled == len(prompt):
            self.drafter.observe(request, request.tokens)
            self.running.append(request)
            self.prefilling = None
        request.stats.seconds["prefill"] += perf_counter() - start
        return max(1, request.num_prefilled - before)

    def _verify(self) -> None:
        """One verify step; whoever is youngest makes room when it finds none."""
        schedule = self.schedule
        while True:
            try:
                verify_step(
                    self.model,
                    self.cache,
                    self.drafter,
                    self.running,
                    self.sampling,
                    schedule=schedule,
                    logprobs=self.logprobs,
                )
                return
            except OutOfBlocks:
                if self.prefilling is not None or len(self.running) > 1:
                    self._set_back_youngest()
                elif schedule is not ALONE:
                    schedule = ALONE  # the last one decodes without drafts
                else:
                    raise

    def _set_back_youngest(self) -> None:
        if self.prefilling is not None:
            youngest = self._give_up_prefilling()
        else:
            youngest = self.running[-1]
            self._leave(youngest)
        self.waiting.appendleft(youngest)

    def _give_up_prefilling(self) -> Request:
        """Drop what was read of a request that has not joined yet."""
        request, self.prefilling = self.prefilling, None
        assert request is not None
        if isinstance(self.drafter, ReadsFeatures):
            self.drafter.release(request)
        self.schedule.release(request)
        self.cache.pool.free(request.seq)
        return request

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.drafter.release(request)
        self.schedule.release(request)
        self.cache.pool.free(request.seq)
