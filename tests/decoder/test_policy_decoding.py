# SPDX-License-Identifier: Apache-2.0
"""Decoding by a policy: the same tokens as ever, and no more drafts than it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny import Scripted, plain, tiny_decoder
from support.two_tokens import p_value
from treeattn.cost_file import CostTables
from treeattn.decoder import Decoder, Generation, Request
from treeattn.decoder import engine as engine_module
from treeattn.decoder import options as options_module
from treeattn.decoder import proposal as proposal_module
from treeattn.decoder import step as step_module
from treeattn.decoder.drafters import Drafter
from treeattn.decoder.proposal import Proposal
from treeattn.schedule import Online, Policy, Schedule, Verdict
from treeattn.tree import DraftTree

# One repeats itself, so that the suffix drafter has something to say.
PROMPTS = [[1, 2, 3, 4] * 4, list(range(30)), [9] * 7, [5, 60, 2, 33]]
NUM_TOKENS = 24
RULES = ("multistep", "swor", "block", "traversal")


def policy(
    shape: str = "tree",
    *,
    drafter: str = "suffix",
    num_nodes: int = 8,
    row_ms: float = 0.05,
    draft_ms: float = 0.01,
) -> Policy:
    """One verdict for every batch; each row takes a little more time."""
    verify = tuple((rows, 200.0, 10.0 + row_ms * rows) for rows in range(1, 257))
    off = Verdict("off", 1, 0.0, 0.0, 1.0)
    verdict = off if shape == "off" else Verdict(shape, num_nodes, draft_ms, 1.0, 1.5)
    return Policy({1: verdict}, CostTables(verify=verify), drafter)


def half_right(truth: Sequence[Sequence[int]]) -> Scripted:
    """A bush of three and a chain behind its first child; every other step it is all wrong."""
    of_prompt = {tuple(p): tokens for p, tokens in zip(PROMPTS, truth, strict=True)}

    def draft(request: Request) -> DraftTree:
        left = of_prompt[tuple(request.tokens[: request.num_prompt])][len(request.output) :]
        shift = len(request.tokens) % 2
        first, second, third = ((left[i] + shift) % 64 if i < len(left) else 0 for i in range(3))
        tokens = [request.tokens[-1], first, (first + 7) % 64, (first + 9) % 64, second, third]
        return DraftTree(tokens, [-1, 0, 0, 0, 1, 4], np.log([1, 0.5, 0.2, 0.1, 0.4, 0.3]))

    return Scripted(draft)


def generate(
    decoder: Decoder,
    prompts: list[list[int]],
    drafter: str | Drafter,
    by: Policy | str | Path | None,
    **options: object,
) -> list[Generation]:
    given = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, **options}
    return decoder.generate(prompts, drafter=drafter, policy=by, **given)  # type: ignore[arg-type]


# The same tokens.


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("drafter", ["suffix", "half_right"])
@pytest.mark.parametrize("shape", ["tree", "chain", "off"])
def test_greedy_output_is_plain_decoding(batch_size: int, drafter: str, shape: str) -> None:
    decoder = tiny_decoder(num_blocks=256)
    truth = [plain(decoder, prompt, NUM_TOKENS) for prompt in PROMPTS]
    found: list[list[int]] = []
    accepted = drafted = 0
    for first in range(0, len(PROMPTS), batch_size):
        outs = generate(
            decoder,
            PROMPTS[first : first + batch_size],
            half_right(truth) if drafter == "half_right" else drafter,
            policy(shape),
        )
        found += [out.tokens for out in outs]
        accepted += sum(sum(out.stats.accepted) for out in outs)
        drafted += sum(out.stats.drafted for out in outs)
    assert found == truth
    if shape == "off":
        assert drafted == 0
    else:
        assert drafted > accepted > 10 or drafter == "suffix"
        assert accepted > 0


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("drafter", ["suffix", "half_right"])
def test_seeded_output_is_plain_decoding(batch_size: int, drafter: str) -> None:
    decoder = tiny_decoder(num_blocks=256)
    options = {"rule": "target", "temperature": 0.7, "top_k": 12}
    seeds = [3, 14, 15, 92]
    truth = [out.tokens for out in generate(decoder, PROMPTS, "none", None, seeds=seeds, **options)]
    found = []
    accepted = 0
    for first in range(0, len(PROMPTS), batch_size):
        part = slice(first, first + batch_size)
        outs = generate(
            decoder,
            PROMPTS[part],
            half_right(truth) if drafter == "half_right" else drafter,
            policy(),
            seeds=seeds[part],
            **options,
        )
        found += [out.tokens for out in outs]
        accepted += sum(sum(out.stats.accepted) for out in outs)
    assert found == truth
    assert accepted > 10 or drafter == "suffix"


def test_streams_take_a_policy() -> None:
    decoder = tiny_decoder(num_blocks=256)
    truth = plain(decoder, PROMPTS[0], NUM_TOKENS)
    options = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    for shape in ("off", "tree"):
        stream = decoder.stream(PROMPTS[0], policy=policy(shape), **options)  # type: ignore[arg-type]
        assert [*stream] == truth
        assert (decoder.stats.drafted > 0) == (shape == "tree")


# What the policy says.


def test_off_is_plain_decoding() -> None:
    decoder = tiny_decoder(num_blocks=256)
    for out in generate(decoder, PROMPTS, "suffix", policy("off")):
        assert out.stats.drafted == 0
        assert out.stats.steps == len(out.tokens) == NUM_TOKENS
        assert out.stats.accepted == [0] * NUM_TOKENS


def test_rows_that_cost_more_than_they_bring_are_left_out() -> None:
    decoder = tiny_decoder(num_blocks=256)
    truth = [plain(decoder, prompt, NUM_TOKENS) for prompt in PROMPTS]
    drafted = [
        sum(
            out.stats.drafted
            for out in generate(decoder, PROMPTS, half_right(truth), policy(row_ms=row_ms))
        )
        for row_ms in (0.01, 2.0, 200.0)
    ]
    assert drafted[0] > drafted[1] > drafted[2] == 0


def test_the_policy_s_budget_takes_the_place_of_num_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One node would be off; the drafter is asked for the policy's eight, in its shape."""
    asked = set()
    decoder = tiny_decoder(num_blocks=256)
    truth = [plain(decoder, prompt, NUM_TOKENS) for prompt in PROMPTS]
    drafter = half_right(truth)
    propose = drafter.propose

    def spy(requests: Sequence[Request], num_nodes: int, shape: str) -> Sequence[DraftTree | None]:
        asked.add((num_nodes, shape))
        return propose(requests, num_nodes, shape)

    monkeypatch.setattr(drafter, "propose", spy)
    generate(decoder, PROMPTS, drafter, policy("chain"), num_nodes=1, shape="tree")
    assert asked == {(8, "chain")}


def test_a_failing_request_goes_without_while_its_neighbour_drafts() -> None:
    """Drafting takes a third of a step; the first prompt's drafts are right, the other's not."""
    decoder = tiny_decoder(num_blocks=256)
    prompts = [PROMPTS[0], PROMPTS[3]]
    truth = [plain(decoder, prompt, 60) for prompt in prompts]

    def draft(request: Request) -> DraftTree:
        row = 0 if request.num_prompt == len(prompts[0]) else 1
        left = truth[row][len(request.output) :][:3]
        tokens = [token if row == 0 else (token + 1) % 64 for token in left]
        return DraftTree.chain([request.tokens[-1], *tokens])

    by = policy(draft_ms=3.0)
    good, bad = generate(decoder, prompts, Scripted(draft), by, max_new_tokens=60)
    assert [good.tokens, bad.tokens] == truth
    assert sum(good.stats.accepted) == 60 - good.stats.steps == 45
    assert good.stats.drafted == 45
    assert sum(bad.stats.accepted) == 0
    assert 0 < bad.stats.drafted < 60


# Files and errors.


@pytest.mark.parametrize("kind", [str, Path])
def test_a_policy_s_file_will_do(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy("off").save(path)
    decoder = tiny_decoder(num_blocks=256)
    (out,) = generate(decoder, PROMPTS[:1], "suffix", kind(path))
    assert out.stats.drafted == 0
    policy().save(path)
    (out,) = generate(decoder, PROMPTS[:1], "suffix", kind(path))
    assert out.stats.drafted > 0


def test_errors_are_named(tmp_path: Path) -> None:
    decoder = tiny_decoder(num_blocks=64)
    with pytest.raises(ValueError, match="was made for the drafter 'suffix', got drafter 'lookup'"):
        generate(decoder, PROMPTS, "lookup", policy())
    with pytest.raises(ValueError, match="was made for the drafter 'lookup', got drafter 'suffix'"):
        generate(decoder, PROMPTS, "suffix", policy(drafter="lookup"))
    with pytest.raises(ValueError, match="was made for the drafter 'suffix', got drafter 'none'"):
        decoder.stream(PROMPTS[0], max_new_tokens=2, drafter="none", policy=policy())
    missing = tmp_path / "policy.json"
    with pytest.raises(ValueError, match=f"policy must be a Policy or its file, got '{missing}'"):
        generate(decoder, PROMPTS, "suffix", missing)
    missing.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=f"policy {missing}: treeattn_policy must be version 1"):
        generate(decoder, PROMPTS, "suffix", missing)
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 64


# Too few blocks.


def test_a_single_request_that_fills_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """28 tokens need 7 blocks of 4: its last drafts find no room, and it decodes without."""
    prompt = PROMPTS[3]
    truth = plain(tiny_decoder(), prompt, NUM_TOKENS)
    alone: list[bool] = []
    verify = engine_module.verify_step

    def spy(*args: Any, schedule: Schedule, logprobs: bool) -> None:
        verify(*args, schedule=schedule, logprobs=logprobs)
        alone.append(schedule is engine_module.ALONE)

    monkeypatch.setattr(engine_module, "verify_step", spy)
    decoder = tiny_decoder(num_blocks=7)

    def wrong(request: Request) -> DraftTree:
        return DraftTree(
            [request.tokens[-1], *[(truth[len(request.output)] + i) % 64 for i in range(1, 8)]],
            [-1, *[0] * 7],
        )

    (out,) = generate(decoder, [prompt], Scripted(wrong), policy(draft_ms=0.0, row_ms=1e-9))
    assert out.tokens == truth
    assert len(alone) == out.stats.steps == NUM_TOKENS - sum(out.stats.accepted)
    assert not alone[0] and True in alone[-7:]
    assert out.stats.drafted >= 7 * alone.count(False) - 7  # before the last token none is asked
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 7


def test_requests_are_set_back_when_blocks_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    set_back: list[int] = []
    original = engine_module.Engine._set_back_youngest

    def spy(self: engine_module.Engine) -> None:
        set_back.append(len(self.running))
        original(self)

    monkeypatch.setattr(engine_module.Engine, "_set_back_youngest", spy)
    truth = [plain(tiny_decoder(), prompt, NUM_TOKENS) for prompt in PROMPTS]
    decoder = tiny_decoder(num_blocks=20)
    outs = generate(decoder, PROMPTS, half_right(truth), policy())
    assert [out.tokens for out in outs] == truth
    assert sum(out.stats.drafted for out in outs) > 0
    assert len(set_back) > 0
    assert decoder._cache is not None
    assert decoder._cache.pool.num_free == 20


# Drawn drafts.


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", ["tree", "off"])
def test_drawn_drafts_stay_what_they_are(
    rule: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is verified was drawn as the rule needs it, of laws that are there; chains for block."""
    verified: list[DraftTree] = []
    propose = proposal_module.propose

    def spy(*args: object) -> Proposal:
        proposal = propose(*args)  # type: ignore[arg-type]
        assert proposal.laws is not None
        for tree, law in zip(proposal.trees, proposal.laws.probs, strict=True):
            if len(tree) > 1:
                verified.append(tree)
                assert law is not None and tree.draft_rows is not None
                assert tree.draft_rows.max() < len(law)
        return proposal

    monkeypatch.setattr(step_module, "propose", spy)
    decoder = tiny_decoder(num_blocks=256)
    for out in generate(
        decoder,
        PROMPTS,
        "layer_skip",
        policy(shape, drafter="layer_skip", row_ms=0.3),
        rule=rule,
        shape="chain" if rule == "block" else "tree",
        temperature=0.5,
        seeds=[1, 2, 3, 4],
    ):
        assert len(out.tokens) == NUM_TOKENS
    if shape == "off":
        assert verified == []
        return
    assert {tree.draws for tree in verified} == {"swor" if rule in ("swor", "traversal") else "iid"}
    assert len({len(tree) for tree in verified}) > 1  # they were cut as was learned
    if rule == "block":
        assert all((tree.parents == np.arange(-1, len(tree) - 1)).all() for tree in verified)


@pytest.mark.parametrize("rule", RULES)
def test_drawn_drafts_keep_the_target_s_law(rule: str) -> None:
    """Chi-square of the first two tokens over many seeds against plain probabilities."""
    num_requests, temperature, prompt = 1200, 0.5, PROMPTS[3]
    decoder = tiny_decoder(num_blocks=2048)
    outs = generate(
        decoder,
        [prompt] * num_requests,
        "layer_skip",
        policy(drafter="layer_skip", row_ms=0.02),
        rule=rule,
        shape="chain" if rule == "block" else "tree",
        temperature=temperature,
        seeds=list(range(num_requests)),
        max_new_tokens=2,
    )
    assert sum(sum(out.stats.accepted) for out in outs) > num_requests / 50
    seen = Counter(tuple(out.tokens) for out in outs)
    assert p_value(decoder, prompt, temperature, seen) > 1e-4


@pytest.mark.parametrize("rule", ["swor", "multistep"])
def test_new_requests_start_from_what_the_op_counted(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accept_path counts what became of drawn drafts; the scheduler reads it, by depth and rank."""
    made: list[Online] = []

    def spy(*args: Any, **options: Any) -> Online:
        made.append(Online(*args, **options))
        return made[-1]

    monkeypatch.setattr(options_module, "Online", spy)
    options = {"rule": rule, "temperature": 1.0, "seeds": 3}
    outs = generate(tiny_decoder(), PROMPTS, "layer_skip", policy(drafter="layer_skip"), **options)
    (schedule,) = made
    assert schedule.counts is not None
    offered, accepted = schedule.counts.tolist()
    # Every accepted token but those cut at a request's end was counted at its depth, once.
    emitted = sum(sum(out.stats.accepted) for out in outs)
    assert 0 < emitted <= sum(map(sum, accepted)) <= emitted + len(PROMPTS) * 8
    assert all(a <= o for kept, tried in zip(accepted, offered, strict=True)
               for a, o in zip(kept, tried, strict=True))  # fmt: skip
    steps = sum(out.stats.steps for out in outs)
    assert 0 < offered[0][0] <= steps
    trust = schedule._fresh().trust
    weight, prior = 5.0, 0.8
    known = (accepted[0][0] + prior * weight) / (offered[0][0] + weight)
    assert trust[0, 0] == pytest.approx(known)
