# SPDX-License-Identifier: Apache-2.0
"""Seeds, penalties and log probabilities: with any tree as in plain decoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny import Scripted, chain_logits, random_tree, tiny_decoder
from treeattn.decoder import Decoder, Generation, Request
from treeattn.tree import DraftTree

PROMPTS = [[4, 8, 15, 16, 23], [42], list(range(33))]


def around(truth: list[list[int]], prompts: list[list[int]]) -> Scripted:
    """Random trees around the expected continuation of each prompt."""
    of_prompt = {tuple(p): tokens for p, tokens in zip(prompts, truth, strict=True)}
    rng = np.random.default_rng(0)

    def draft(request: Request) -> DraftTree:
        left = of_prompt[tuple(request.tokens[: request.num_prompt])][len(request.output) :]
        return random_tree(rng, request.tokens[-1], left, 12, 64)

    return Scripted(draft)


def sample(
    decoder: Decoder,
    prompts: list[list[int]],
    seeds: int | list[int] | None,
    drafter: str | Scripted = "none",
) -> list[list[int]]:
    outs = decoder.generate(
        prompts,
        max_new_tokens=20,
        drafter=drafter,
        rule="target",
        temperature=0.8,
        top_k=12,
        top_p=0.95,
        seeds=seeds,
    )
    return [out.tokens for out in outs]


def test_seeded_tokens_do_not_depend_on_drafts_or_mates() -> None:
    decoder = tiny_decoder(num_blocks=128)
    seeds = [42, 7, 42]
    alone = [
        sample(decoder, [prompt], [seed])[0] for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert sample(decoder, PROMPTS, seeds) == alone
    assert sample(decoder, PROMPTS[::-1], seeds[::-1]) == alone[::-1]
    drafter = around(alone, PROMPTS)
    assert sample(decoder, PROMPTS, seeds, drafter) == alone
    assert sum(decoder.stats.accepted) > 10
    small = tiny_decoder(num_blocks=16)  # requests are set back and resumed
    assert sample(small, PROMPTS, seeds, drafter) == alone


def test_equal_seeds_agree_and_others_do_not() -> None:
    decoder = tiny_decoder()
    same = sample(decoder, [PROMPTS[0]] * 2, 5)
    assert same[0] == same[1]
    unseeded = sample(decoder, [PROMPTS[0]] * 2, None)
    assert unseeded[0] != unseeded[1]
    torch.manual_seed(3)
    first = sample(decoder, [PROMPTS[0]], None)
    torch.manual_seed(3)
    assert sample(decoder, [PROMPTS[0]], None) == first


def test_temperature_zero_is_greedy() -> None:
    decoder = tiny_decoder()
    options = {"max_new_tokens": 20, "drafter": "suffix"}
    greedy, target = (
        decoder.generate(PROMPTS, rule=rule, **options)  # type: ignore[arg-type]
        for rule in ("greedy", "target")
    )
    assert [out.tokens for out in greedy] == [out.tokens for out in target]


def penalised(decoder: Decoder, prompt: list[int], penalty: float) -> list[int]:
    """Greedy decoding with the penalty applied token by token to fresh logits."""
    tokens = list(prompt)
    for _ in range(16):
        logits = chain_logits(decoder, tokens)[-1].clone()
        for token in set(tokens):
            value = logits[token]
            logits[token] = value / penalty if value > 0 else value * penalty
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("penalty", [0.7, 1.5])
def test_repetition_penalty_follows_each_path(penalty: float) -> None:
    decoder = tiny_decoder()
    truth = [penalised(decoder, prompt, penalty) for prompt in PROMPTS]
    for drafter in ("none", around(truth, PROMPTS)):
        outs = decoder.generate(
            PROMPTS,
            max_new_tokens=16,
            drafter=drafter,  # type: ignore[arg-type]
            repetition_penalty=penalty,
        )
        assert [out.tokens for out in outs] == truth
    assert sum(decoder.stats.accepted) > 10
    unpenalised = decoder.generate(PROMPTS, max_new_tokens=16)
    assert [out.tokens for out in unpenalised] != truth


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_logprobs_are_of_the_raw_law(penalty: float) -> None:
    decoder = tiny_decoder()

    def generate(drafter: str | Scripted) -> list[Generation]:
        return decoder.generate(
            PROMPTS,
            max_new_tokens=16,
            drafter=drafter,
            logprobs=True,
            repetition_penalty=penalty,
        )

    plain = generate("none")
    tree = generate(around([out.tokens for out in plain], PROMPTS))
    for prompt, out, drafted in zip(PROMPTS, plain, tree, strict=True):
        law = chain_logits(decoder, prompt + out.tokens)[len(prompt) - 1 : -1].log_softmax(-1)
        expected = law.gather(1, torch.tensor(out.tokens)[:, None])[:, 0].tolist()
        assert out.logprobs == pytest.approx(expected, abs=1e-4)
        assert drafted.tokens == out.tokens
        assert drafted.logprobs == pytest.approx(expected, abs=1e-4)
    assert decoder.generate(PROMPTS, max_new_tokens=2)[0].logprobs is None
