# SPDX-License-Identifier: Apache-2.0
"""A recording has a draft at every position of plain decoding, which it does not change."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.eagle import related_decoder, save_head
from support.tiny import plain
from support.tuning import TICK, Clock, TimedSuffix, copying_prompts
from torch import Tensor
from treeattn.decoder import ReadsFeatures, Request, SuffixDraft
from treeattn.tree import DraftTree
from treeattn.tune.record import Recorder, record

NUM_TOKENS = 14


class Diary:
    """A drafter that writes down what reaches it; its drafts tell the position they are for."""

    def __init__(self, drafts: bool) -> None:
        self._drafts = drafts
        self.log: list[tuple[Any, ...]] = []

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        self.log.append(("propose", num_nodes, shape))
        return [self._draft(request) for request in requests]

    def _draft(self, request: Request) -> DraftTree | None:
        """None at every third position."""
        if not self._drafts or len(request.tokens) % 3 == 0:
            return None
        return DraftTree([request.tokens[-1], len(request.tokens) % 64], [-1, 0], [0.0, -1.0])

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        self.log.append(("observe", request.seq, *tokens))

    def release(self, request: Request) -> None:
        self.log.append(("release", request.seq))

    @property
    def heard(self) -> list[tuple[Any, ...]]:
        """All but the questions."""
        return [entry for entry in self.log if entry[0] != "propose"]


class FeatureDiary(Diary):
    def observe_features(self, request: Request, features: Tensor) -> None:
        self.log.append(("features", request.seq, *features.flatten().tolist()))


def recorded_by(diary: Diary, prompts: Sequence[Sequence[int]], **options: Any) -> Any:
    names = [f"p{index}" for index in range(len(prompts))]
    return record(
        related_decoder(),
        diary,
        prompts,
        names,
        num_nodes=8,
        max_new_tokens=NUM_TOKENS,
        **options,
    )


def test_a_draft_at_every_position_and_the_tokens_of_plain_decoding() -> None:
    prompts = [[1, 2], list(range(20, 31)), [9]]
    diary = Diary(drafts=True)
    recorded = recorded_by(diary, prompts)
    assert [recording.name for recording in recorded.recordings] == ["p0", "p1", "p2"]
    for prompt, recording in zip(prompts, recorded.recordings, strict=True):
        assert list(recording.tokens) == plain(related_decoder(), prompt, NUM_TOKENS)
        assert recording.context == len(prompt) - 1
        whole = [*prompt, *recording.tokens]
        for at, draft in enumerate(recording.drafts):
            length = len(prompt) + at
            if length % 3 == 0:
                assert draft is None
            else:
                assert draft is not None
                assert draft.tokens.tolist() == [whole[length - 1], length % 64]
    asked = [entry for entry in diary.log if entry[0] == "propose"]
    assert asked == [("propose", 8, "tree")] * (3 * NUM_TOKENS) and len(recorded.draft_ms) == 42
    chained = Diary(drafts=True)
    recorded_by(chained, prompts[:1], shape="chain")
    assert ("propose", 8, "chain") in chained.log


def test_the_recorded_drafts_are_those_that_decoding_would_have_used() -> None:
    """On a copying prompt much of what the trie drafts comes true."""
    prompt = copying_prompts()[0]
    (recording,) = recorded_by(SuffixDraft(), [prompt]).recordings  # type: ignore[arg-type]
    true = 0
    for at, draft in enumerate(recording.drafts):
        if draft is not None:
            assert draft.tokens[0] == [*prompt, *recording.tokens][len(prompt) + at - 1]
            true += recording.tokens[at] in draft.tokens[draft.children(0)]
    assert true > NUM_TOKENS // 2


@pytest.mark.parametrize("kind", [Diary, FeatureDiary])
def test_everything_else_reaches_the_drafter(kind: type[Diary]) -> None:
    """As it would in plain decoding with a drafter that has no drafts."""
    prompts = [[1, 2, 3], [7] * 5]
    diary, silent = kind(drafts=True), kind(drafts=False)
    recorded_by(diary, prompts)
    decoder = related_decoder()
    for prompt in prompts:
        decoder.generate([prompt], max_new_tokens=NUM_TOKENS, drafter=silent)
    assert diary.heard == silent.heard
    assert {entry[0] for entry in diary.heard} == (
        {"observe", "release", "features"} if kind is FeatureDiary else {"observe", "release"}
    )


def test_features_are_asked_for_where_the_drafter_reads_them() -> None:
    """Also by Python 3.12, whose protocols do not see attributes that are only forwarded."""
    reads, does_not = Recorder(FeatureDiary(True)), Recorder(Diary(True))
    assert isinstance(reads, ReadsFeatures) and not isinstance(does_not, ReadsFeatures)
    assert inspect.getattr_static(reads, "observe_features", None) is not None


def test_a_draft_head_drafts_as_it_does_in_decoding(tmp_path: Any) -> None:
    decoder = related_decoder()
    head = decoder.load_draft_head(save_head(tmp_path), top_k=3, depth=3)
    recorded = record(decoder, head, [[4, 8, 15, 16]], ["p"], num_nodes=8, max_new_tokens=12)
    (recording,) = recorded.recordings
    drafts = [draft for draft in recording.drafts if draft is not None]
    assert len(drafts) == 11  # all but the last, behind which nothing fits
    hits = [
        recording.tokens[at] in draft.tokens[draft.children(0)]
        for at, draft in enumerate(recording.drafts)
        if draft is not None
    ]
    assert sum(hits) > 3


def test_what_calls_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    recorded = recorded_by(TimedSuffix(clock, 2), [[1, 2]], shape="chain")  # type: ignore[arg-type]
    (recording,) = recorded.recordings
    levels = [1 if draft is None else int(draft.depths.max()) for draft in recording.drafts]
    assert list(recorded.draft_ms) == [2000 * TICK * level for level in levels]


def test_sampling_is_seeded() -> None:
    prompts = [[1, 2], [9, 9]]

    def tokens(**options: Any) -> list[tuple[int, ...]]:
        torch.rand(3)  # torch's own generator is elsewhere in every run
        done = recorded_by(Diary(drafts=True), prompts, temperature=2.0, **options)
        return [recording.tokens for recording in done.recordings]

    first = tokens(seed=3)
    assert tokens(seed=3) == first
    assert tokens(seed=4) != first
    assert first != [tuple(plain(related_decoder(), prompt, NUM_TOKENS)) for prompt in prompts]
