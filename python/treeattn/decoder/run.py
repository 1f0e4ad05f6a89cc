# SPDX-License-Identifier: Apache-2.0
"""Prompts on their way to their ends, a step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from treeattn.decoder.engine import Engine
from treeattn.decoder.request import Generation, Request


class Run:
    """What `Decoder.start` has begun. Used with `with`, it gives back all blocks at the end, those
    of unfinished requests too; what they emitted stays in `requests`."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.requests = requests
        self._engine = engine

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.close()

    @property
    def busy(self) -> bool:
        return self._engine.busy

    def step(self) -> None:
        """Read some prompt tokens, then decode one step of every request that has been read."""
        self._engine.step()

    @property
    def num_tokens(self) -> int:
        """Emitted so far, all requests together."""
        return sum(len(request.tokens) - request.num_prompt for request in self.requests)

    def results(self) -> list[Generation]:
        """One per prompt, in order. Raises ValueError while a request is unfinished."""
        return [self._result(index, request) for index, request in enumerate(self.requests)]

    def _result(self, index: int, request: Request) -> Generation:
        if request.finish_reason is None:
            raise ValueError(
                f"requests[{index}] must have finished before there are results, got "
                f"{len(request.output)} tokens so far"
            )
        return Generation(
            tokens=request.output,
            text=request.text,
            finish_reason=request.finish_reason,
            logprobs=request.logprobs if self._engine.logprobs else None,
            stats=request.stats,
        )
