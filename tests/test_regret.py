# SPDX-License-Identifier: Apache-2.0
"""Regret of the online policy on six real continuations, at costs measured on two CPU cores.

The suffix drafter looks at tokens only, so its drafts along the recorded outputs of SmolLM2 need no
model. `bench/costs/smollm2_135m_fp32.json` is the cost table of a `treeattn tune` run.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from treeattn.cost_file import CostTables
from treeattn.decoder import Request
from treeattn.decoder.drafters import SuffixDraft
from treeattn.schedule import Fixed, Online, Policy, Schedule, Verdict
from treeattn.schedule.recording import Recording
from treeattn.schedule.replay import Replayed, replay

ROOT = Path(__file__).parents[1]
COSTS = CostTables.load(ROOT / "bench" / "costs" / "smollm2_135m_fp32.json")
FREE_TEXT = ("chat", "story")
MOST_NODES = 48
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
MOST_ROWS = 128
# It promises nothing in particular: what pays is left to be found out.
POLICY = Policy({1: Verdict("tree", MOST_NODES, 0.05, 0.5, 1.2)}, COSTS, "suffix")


@cache
def recordings() -> tuple[Recording, ...]:
    golden = json.loads((ROOT / "tests" / "data" / "smollm2_golden.json").read_text("utf-8"))
    return tuple(
        _recorded(entry["name"], entry["prompt_ids"], entry["output_ids"]) for entry in golden
    )


def _recorded(name: str, prompt: list[int], output: list[int]) -> Recording:
    drafter, request = SuffixDraft(), Request(seq=0, tokens=[*prompt], limit=1 << 20)
    drafter.observe(request, request.tokens)
    drafts = []
    for token in output:
        drafts += drafter.propose([request], MOST_NODES, "tree")
        request.tokens.append(token)
        drafter.observe(request, [token])
    return Recording(name, len(prompt) - 1, tuple(output), tuple(drafts))


def decoded(schedule: Schedule, batch_size: int, only: str | None = None) -> Replayed:
    chosen = [one for one in recordings() if only in (None, one.name)]
    return replay(
        chosen * (1 if only else batch_size),  # so that the batch stays full for most of the time
        schedule,
        COSTS,
        batch_size=batch_size,
    )


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8])
def test_regret_is_below_5_percent(batch_size: int) -> None:
    """Against the best of plain decoding, all chains and all trees, chosen in hindsight."""
    fixed = {"off": Fixed(1)} | {
        f"{shape}-{size}": Fixed(size, shape)
        for shape in ("chain", "tree")
        for size in SIZES
        if size * batch_size <= MOST_ROWS
    }
    best = min(decoded(schedule, batch_size).total_ms for schedule in fixed.values())
    online = decoded(Online(POLICY, MOST_ROWS), batch_size)
    assert online.tokens == sum(len(one.tokens) for one in recordings()) * batch_size
    assert online.total_ms < 1.05 * best


def test_no_prompt_is_slower_than_plain_decoding() -> None:
    """Free text included: at least 0.97 of its speed, on every single prompt."""
    speedups = {
        one.name: decoded(Fixed(1), 1, one.name).total_ms
        / decoded(Online(POLICY, MOST_ROWS), 1, one.name).total_ms
        for one in recordings()
    }
    assert set(FREE_TEXT) < set(speedups)
    assert min(speedups.values()) >= 0.97
