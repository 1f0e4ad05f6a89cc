# SPDX-License-Identifier: Apache-2.0
"""Plain decoding with a drafter that is asked at every position, and not believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from treeattn.decoder import Decoder, Drafter, ReadsFeatures, Request
from treeattn.schedule.recording import Recording
from treeattn.tree import DraftTree


@dataclass(frozen=True)
class Recorded:
    """recordings: one per prompt. draft_ms: what each call of the drafter took."""

    recordings: tuple[Recording, ...]
    draft_ms: tuple[float, ...]


def record(
    decoder: Decoder,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    *,
    num_nodes: int,
    shape: str = "tree",
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> Recorded:
    """Continue each prompt (token ids) plainly, with a draft of `num_nodes` at every position."""
    recordings: list[Recording] = []
    draft_ms: list[float] = []
    for name, prompt in zip(names, prompts, strict=True):
        recorder = Recorder(drafter)
        (result,) = decoder.generate(
            [prompt],
            max_new_tokens=max_new_tokens,
            drafter=recorder,
            num_nodes=num_nodes,
            shape=shape,
            rule="greedy" if temperature == 0 else "target",
            temperature=temperature,
            seeds=seed,
        )
        drafts = (recorder.drafts.get(len(prompt) + at) for at in range(len(result.tokens)))
        recordings.append(Recording(name, len(prompt) - 1, tuple(result.tokens), tuple(drafts)))
        draft_ms += (1000 * seconds for seconds in recorder.seconds)
    return Recorded(tuple(recordings), tuple(draft_ms))


class Recorder:
    """Asks `inner` for the drafts of one request, keeps them, and gives none.

    drafts: by the length of the sequence. seconds: what each call took.
    """

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.drafts: dict[int, DraftTree | None] = {}
        self.seconds: list[float] = []
        if isinstance(inner, ReadsFeatures):
            self.observe_features = inner.observe_features

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        start = perf_counter()
        trees = self._inner.propose(requests, num_nodes, shape)
        self.seconds.append(perf_counter() - start)
        for request, tree in zip(requests, trees, strict=True):
            self.drafts[len(request.tokens)] = tree
        return [None] * len(requests)

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        self._inner.observe(request, tokens)

    def release(self, request: Request) -> None:
        self._inner.release(request)
