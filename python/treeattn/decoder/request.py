# SPDX-License-Identifier: Apache-2.0
"""The state of one request, and the result it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from treeattn.decoder.tokenizer import TextStream

PHASES = ("prefill", "draft", "verify", "accept", "remap")


@dataclass
class Stats:
    """What speculation did.

    steps: verify steps. drafted: draft nodes verified, roots not counted. accepted: draft tokens
    kept, one entry per step. seconds: wall time by phase; a step shared by several requests is
    split evenly between them.
    """

    steps: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def add(self, other: Stats) -> None:
        self.steps += other.steps
        self.drafted += other.drafted
        self.accepted += other.accepted
        for phase, seconds in other.seconds.items():
            self.seconds[phase] += seconds


@dataclass(eq=False)
class Request:
    """One sequence being decoded.

    tokens: prompt and output so far; the last one is the root, whose KV is not in the cache yet.
    limit: number of tokens the sequence may reach. text: the output's text, as far as complete
    characters go. num_prefilled: tokens whose KV lies in the cache while the prompt is read.
    """

    seq: int
    tokens: list[int]
    limit: int
    seed: int = 0
    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    text_stream: TextStream | None = None
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[float] = field(default_factory=list)
    num_prefilled: int = 0
    stats: Stats = field(default_factory=Stats)
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def context(self) -> int:
        """Tokens before the root."""
        return len(self.tokens) - 1

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.tokens)


@dataclass(frozen=True)
class Generation:
    """The result for one prompt.

    tokens: new ids, the end token included. text: cut before the stop string that ended it.
    finish_reason: "stop" or "length". logprobs: of each token under the raw target law, or None.
    """

    tokens: list[int]
    text: str
    finish_reason: str
    logprobs: list[float] | None
    stats: Stats
