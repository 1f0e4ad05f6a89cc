# SPDX-License-Identifier: Apache-2.0
"""Decoder.start: steps are the caller's to take, and blocks come back whoever stops when."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.tiny import tiny_decoder
from treeattn.decoder import Decoder, Options, SuffixDraft
from treeattn.kv_cache import OutOfBlocks

PROMPTS = [[1, 2, 3, 1, 2], [7], list(range(40))]
OPTIONS = Options(max_new_tokens=9, num_nodes=4)


def num_free(decoder: Decoder) -> int:
    assert decoder._cache is not None
    return decoder._cache.pool.num_free


def test_taken_to_its_end_a_run_is_generate() -> None:
    decoder = tiny_decoder()
    expected = decoder.generate(PROMPTS, max_new_tokens=9, num_nodes=4)
    for budget in (None, 1, math.inf):
        with decoder.start(PROMPTS, OPTIONS, prefill_budget=budget) as run:
            assert run.num_tokens == 0
            while run.busy:
                before = run.num_tokens
                run.step()
                assert run.num_tokens > before or budget == 1
        assert run.num_tokens == 27
        assert [out.tokens for out in run.results()] == [out.tokens for out in expected]


def test_two_runs_in_turns() -> None:
    """One drafter serves both; neither sees the other."""
    decoder, drafter = tiny_decoder(), SuffixDraft()
    expected = [decoder.generate([p], max_new_tokens=9, num_nodes=4)[0].tokens for p in PROMPTS]
    runs = [decoder.start([p], Options(9, drafter, 4)) for p in PROMPTS]
    while busy := [run for run in runs if run.busy]:
        for run in busy:
            run.step()
    assert [run.results()[0].tokens for run in runs] == expected


def test_left_early_it_has_no_results_and_no_blocks() -> None:
    decoder = tiny_decoder(num_blocks=64)
    with decoder.start(PROMPTS, OPTIONS) as run:
        run.step()
        assert num_free(decoder) < 64
        with pytest.raises(ValueError, match=r"requests\[0\] must have finished .* got \d tokens"):
            run.results()
    assert num_free(decoder) == 64 and not run.busy
    with pytest.raises(ValueError, match=r"requests\[0\] must have finished"):
        run.results()


def test_runs_share_the_blocks_of_their_decoder() -> None:
    """What one of them holds the other lacks; it says so, and the first goes on."""
    decoder = tiny_decoder(num_blocks=14)
    with decoder.start([PROMPTS[2]], OPTIONS) as first:
        first.step()
        with pytest.raises(OutOfBlocks), decoder.start([PROMPTS[2]], OPTIONS) as second:
            second.step()
        while first.busy:
            first.step()
    assert num_free(decoder) == 14
    expected = tiny_decoder().generate([PROMPTS[2]], max_new_tokens=9, num_nodes=4)
    assert first.results()[0].tokens == expected[0].tokens


@pytest.mark.parametrize("budget", [0, -1, math.nan])
def test_a_budget_that_reads_nothing(budget: float) -> None:
    with pytest.raises(ValueError, match=f"prefill_budget must be > 0, got {budget}"):
        tiny_decoder().start(PROMPTS, OPTIONS, prefill_budget=budget)


def test_options_serve_many_requests() -> None:
    """End ids given as an iterator end every request."""
    decoder = tiny_decoder()
    plain: dict[str, Any] = {"max_new_tokens": 9, "drafter": "none", "num_nodes": 1}
    first, second = (decoder.generate([p], **plain)[0].tokens for p in PROMPTS[:2])
    ends = {first[2], second[3]}
    outs = decoder.generate(PROMPTS[:2], eos_ids=iter(ends), **plain)
    assert all(out.tokens[-1] in ends and len(out.tokens) <= 4 for out in outs)
