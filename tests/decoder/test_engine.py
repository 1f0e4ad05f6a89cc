# SPDX-License-Identifier: Apache-2.0
"""Requests join, wait, are set back and leave; none of it shows in their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.tiny import Scripted, char_tokenizer, plain, random_tree, tiny_decoder
from treeattn.decoder import Decoder, Request
from treeattn.decoder import engine as engine_module
from treeattn.decoder import forward as forward_module
from treeattn.tree import DraftTree

PROMPTS = [[1, 2], list(range(30)), [9] * 7, [5, 60, 2, 33], list(range(50, 10, -3))]


def drafts(truth: Sequence[Sequence[int]]) -> Scripted:
    """Random trees around the true continuation of each prompt."""
    of_prompt = {tuple(p): tokens for p, tokens in zip(PROMPTS, truth, strict=True)}
    rng = np.random.default_rng(0)

    def draft(request: Request) -> DraftTree:
        expected = of_prompt[tuple(request.tokens[: request.num_prompt])]
        left = expected[len(request.output) :]
        return random_tree(rng, request.tokens[-1], left, 12, 64)

    return Scripted(draft)


def test_requests_are_set_back_when_blocks_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one sequence of full length and little more, for five requests."""
    set_back: list[int] = []
    original = engine_module.Engine._set_back_youngest

    def spy(self: engine_module.Engine) -> None:
        set_back.append(len(self.running))
        original(self)

    monkeypatch.setattr(engine_module.Engine, "_set_back_youngest", spy)
    truth = [plain(tiny_decoder(), prompt, 40) for prompt in PROMPTS]
    decoder = tiny_decoder(num_blocks=28)
    outs = decoder.generate(PROMPTS, max_new_tokens=40, drafter=drafts(truth))
    assert [out.tokens for out in outs] == truth
    assert len(set_back) > 0
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 28
    decoder._cache.pool.check()


def test_drafts_shrink_when_a_single_request_fills_the_cache() -> None:
    truth = [plain(tiny_decoder(), prompt, 40) for prompt in PROMPTS]
    decoder = tiny_decoder(num_blocks=11)  # 42 tokens need 11 blocks of 4
    (out,) = decoder.generate(PROMPTS[:1], max_new_tokens=40, drafter=drafts(truth), num_nodes=12)
    assert out.tokens == truth[0]


def test_a_request_that_can_never_fit_is_refused() -> None:
    decoder = tiny_decoder(num_blocks=10)
    with pytest.raises(ValueError, match=r"num_blocks must be at least 11 .* 42 tokens .* got 10"):
        decoder.generate(PROMPTS[:1], max_new_tokens=40)
    assert decoder.generate(PROMPTS[:1], max_new_tokens=30)[0].finish_reason == "length"


def test_more_requests_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = [plain(tiny_decoder(), prompt, 20) for prompt in PROMPTS]
    monkeypatch.setattr(engine_module, "MAX_ROWS", 24)  # two requests of 12 nodes
    most = 0
    verify = engine_module.verify_step

    def spy(model, cache, drafter, requests, sampling, **options):  # type: ignore[no-untyped-def]
        nonlocal most
        most = max(most, len(requests))
        verify(model, cache, drafter, requests, sampling, **options)

    monkeypatch.setattr(engine_module, "verify_step", spy)
    outs = tiny_decoder().generate(PROMPTS, max_new_tokens=20, drafter=drafts(truth), num_nodes=12)
    assert [out.tokens for out in outs] == truth
    assert most == 2


@pytest.mark.parametrize("max_new_tokens", [2, 5, 20])
@pytest.mark.parametrize("num_nodes", [1, 2, 9])
def test_nobody_waits_for_blocks_on_a_cache_made_for_the_call(
    num_nodes: int, max_new_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step has all requests: prompts of 1 to 30 tokens, blocks of 4."""
    batches: list[int] = []
    verify = engine_module.verify_step

    def spy(model, cache, drafter, requests, sampling, **options):  # type: ignore[no-untyped-def]
        batches.append(len(requests))
        verify(model, cache, drafter, requests, sampling, **options)

    monkeypatch.setattr(engine_module, "verify_step", spy)
    decoder = tiny_decoder()
    assert decoder._cache is None
    decoder.generate(
        PROMPTS, max_new_tokens=max_new_tokens, drafter=Scripted(no_draft), num_nodes=num_nodes
    )
    assert batches == [len(PROMPTS)] * max_new_tokens


def no_draft(request: Request) -> None:
    return None


@pytest.mark.parametrize("num_blocks", range(22, 40, 3))
def test_whoever_joins_finds_room_for_its_first_step(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the cache: nobody is set back by the step that follows an admission."""
    truth = [plain(tiny_decoder(), prompt, 40) for prompt in PROMPTS]
    joined_at_last_step: list[int] = []
    admit, step = engine_module.Engine._admit, engine_module.Engine.step
    set_back = engine_module.Engine._set_back_youngest

    def spy_admit(self: engine_module.Engine) -> bool:
        before = self.prefilling
        admitted = admit(self)
        if admitted and self.prefilling is not before and self.prefilling is not None:
            joined_at_last_step.append(self.prefilling.seq)
        return admitted

    def spy_step(self: engine_module.Engine) -> None:
        joined_at_last_step.clear()
        step(self)

    def spy_set_back(self: engine_module.Engine) -> None:
        assert not joined_at_last_step
        set_back(self)

    monkeypatch.setattr(engine_module.Engine, "_admit", spy_admit)
    monkeypatch.setattr(engine_module.Engine, "step", spy_step)
    monkeypatch.setattr(engine_module.Engine, "_set_back_youngest", spy_set_back)
    outs = tiny_decoder(num_blocks=num_blocks).generate(
        PROMPTS, max_new_tokens=40, drafter=drafts(truth), num_nodes=12
    )
    assert [out.tokens for out in outs] == truth


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_prefill_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [plain(tiny_decoder(), prompt, 8) for prompt in PROMPTS]
    monkeypatch.setattr(forward_module, "PREFILL_CHUNK", chunk)
    monkeypatch.setattr(engine_module, "PREFILL_BUDGET", 2 * chunk)
    outs = tiny_decoder().generate(PROMPTS, max_new_tokens=8)
    assert [out.tokens for out in outs] == expected


def test_streams_share_a_cache_and_give_it_back() -> None:
    decoder = tiny_decoder(num_blocks=64)
    expected = [plain(decoder, prompt, 20) for prompt in PROMPTS[:2]]
    first = decoder.stream(PROMPTS[0], max_new_tokens=20)
    second = decoder.stream(PROMPTS[1], max_new_tokens=20)
    tokens: list[list[int]] = [[], []]
    for a, b in zip(first, second, strict=True):
        tokens[0].append(a)
        tokens[1].append(b)
    assert tokens == expected

    abandoned = decoder.stream(PROMPTS[0], max_new_tokens=20)
    next(abandoned)
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free < 64
    abandoned.close()  # type: ignore[attr-defined]
    assert decoder._cache.pool.num_free == 64


def test_a_failing_drafter_leaves_no_blocks_behind() -> None:
    decoder = tiny_decoder(num_blocks=64)
    drafter = Scripted(lambda request: DraftTree.chain([request.tokens[-1] + 1]))
    with pytest.raises(ValueError, match=r"root must be the last token of its request, 2, got 3"):
        decoder.generate(PROMPTS[:1], max_new_tokens=8, drafter=drafter)
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 64


def test_non_finite_logits_are_an_error() -> None:
    decoder = tiny_decoder(num_blocks=64)
    decoder.model.embedding[5] = torch.nan
    with pytest.raises(RuntimeError, match="request 0: non-finite logits at token 2"):
        decoder.generate([[1, 5]], max_new_tokens=8)
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 64


def test_stats_add_up() -> None:
    truth = [plain(tiny_decoder(), prompt, 20) for prompt in PROMPTS]
    decoder = tiny_decoder()
    outs = decoder.generate(PROMPTS, max_new_tokens=20, drafter=drafts(truth))
    for out in outs:
        assert len(out.stats.accepted) == out.stats.steps
        # Each step emits one token more than it accepts, unless the budget ends inside its path.
        assert len(out.tokens) - out.stats.steps - sum(out.stats.accepted) in (-1, 0)
    total = decoder.stats
    assert total.steps == sum(out.stats.steps for out in outs)
    assert total.drafted == sum(out.stats.drafted for out in outs)
    assert set(total.seconds) == {"prefill", "draft", "verify", "accept", "remap"}
    assert all(seconds > 0 for seconds in total.seconds.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be >= 0, got -1"),
        ({"drafter": "magic"}, "drafter must be one of none, lookup, suffix, layer_skip"),
        ({"num_nodes": 0}, "num_nodes counts the root, so it must be >= 1, got 0"),
        ({"shape": "bush"}, "shape must be one of tree, chain, got 'bush'"),
        ({"stop": ("",)}, "stop must hold non-empty strings"),
        ({"stop": "x"}, "stop needs a checkpoint with a tokenizer"),
        ({"seeds": [1]}, "seeds must have one entry per prompt, 2, got 1"),
        ({"policy": "auto"}, "policy must be a Policy or its file, got 'auto'"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be > 0, got 0.0"),
        ({"rule": "nonsense"}, "rule"),
        ({"rule": "target", "temperature": -1.0, "seeds": 0}, "temperature"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    decoder = tiny_decoder(num_blocks=64)
    with pytest.raises(ValueError, match=message):
        decoder.generate([[1, 2], [3]], **{"max_new_tokens": 4} | options)  # type: ignore[arg-type]
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 64


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("abc", "prompts must be a list of prompts, got a single string"),
        (["abc"], r"prompts\[0\] is text, but the checkpoint has no tokenizer"),
        ([[1], []], r"prompts\[1\] must have 1 to 256 tokens, got 0"),
        ([[1, 64]], r"prompts\[0\] must hold ids in \[0, 64\), got 64"),
    ],
)
def test_bad_prompts_are_named(prompts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_decoder().generate(prompts, max_new_tokens=4)  # type: ignore[arg-type]


def test_no_prompts() -> None:
    assert tiny_decoder().generate([], max_new_tokens=4) == []


def test_text_prompt_without_a_template_is_encoded_as_it_is() -> None:
    decoder: Decoder = tiny_decoder(tokenizer=char_tokenizer())
    by_text, by_ids = decoder.generate(["bcd", [1, 2, 3]], max_new_tokens=6)
    assert by_text.tokens == by_ids.tokens
    assert by_text.text == "".join(decoder.tokenizer.vocabulary.get(i, "") for i in by_text.tokens)  # type: ignore[union-attr]
