# SPDX-License-Identifier: Apache-2.0
"""A clock that only a script moves, and small tuning runs under it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from treeattn.decoder import Request, SuffixDraft
from treeattn.decoder import engine as engine_module
from treeattn.decoder import step as step_module
from treeattn.decoder.model import Model
from treeattn.decoder.sampling import Sampling
from treeattn.tree import DraftTree
from treeattn.tune import analysis as analysis_module
from treeattn.tune import costs as costs_module
from treeattn.tune import record as record_module
from treeattn.tune import restore as restore_module
from treeattn.tune import run as run_module
from treeattn.tune.run import Prompt, Task, Tuned, Tuner
from treeattn.tune.state import Measured
from treeattn.tune.trials import Setting, Trial

from support.eagle import related_decoder, related_weights
from support.tiny import CONFIG, LLAMA_CONFIG, char_tokenizer, plain

TICK = 0.125  # seconds; sums of it are exact, and so are its milliseconds
TASK = Task("suffix", (1, 2), max_new_tokens=8, max_step_ms=None, seed=0, about={"model": "tiny"})
ROWS, CONTEXTS = (1, 2, 4, 8), (16, 32)


class Clock:
    """Seconds that pass only where `script` says so; every `perf_counter` in sight reads them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._patch = monkeypatch
        for module in (engine_module, step_module, record_module, restore_module):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def advance(self, ticks: float) -> None:
        self.now += ticks * TICK

    def script(
        self,
        verify: Callable[[int, int], float],
        accept: float | Callable[[int], float] = 0.0,
        remap: float | Callable[[int], float] = 0.0,
    ) -> None:
        """Ticks: verify(rows, longest context), accept(rows), remap(rows)."""
        forward, decide, restore = Model.forward, Sampling.accept, step_module.remap_kv

        def slow_forward(
            model: Model, tokens: Any, plan: Any, k_cache: Any, v_cache: Any, rows: Any = None
        ) -> Any:
            if rows is None:  # no prefill
                self.advance(verify(len(tokens), int(plan.context_lens.max())))
            return forward(model, tokens, plan, k_cache, v_cache, rows=rows)

        def slow_accept(sampling: Sampling, logits: Any, *rest: Any) -> Any:
            self.advance(accept(len(logits)) if callable(accept) else accept)
            return decide(sampling, logits, *rest)

        def slow_remap(k_cache: Any, v_cache: Any, plan: Any, accepted: Any) -> Any:
            self.advance(remap(plan.num_nodes) if callable(remap) else remap)
            return restore(k_cache, v_cache, plan, accepted)

        self._patch.setattr(Model, "forward", slow_forward)
        self._patch.setattr(Sampling, "accept", slow_accept)
        self._patch.setattr(step_module, "remap_kv", slow_remap)
        self._patch.setattr(restore_module, "remap_kv", slow_remap)


class TimedSuffix(SuffixDraft):
    """The suffix trie, a level of whose drafts takes `ticks`."""

    def __init__(self, clock: Clock, ticks: float) -> None:
        super().__init__()
        self._clock = clock
        self._ticks = ticks

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        trees = super().propose(requests, num_nodes, shape)
        levels = max((int(tree.depths.max()) for tree in trees if tree is not None), default=1)
        self._clock.advance(levels * self._ticks)
        return trees


@dataclass(frozen=True)
class FinishedRun:
    """texts: what the run said on its way."""

    tuner: Tuner
    tuned: Tuned
    texts: list[str]


def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning runs that time few steps, and record small drafts."""
    for module in (run_module, analysis_module):
        monkeypatch.setattr(module, "ROWS", ROWS)
        monkeypatch.setattr(module, "RECORDED_NODES", ROWS[-1])
    monkeypatch.setattr(run_module, "CONTEXTS", CONTEXTS)
    monkeypatch.setattr(costs_module, "REPEATS", 2)
    monkeypatch.setattr(costs_module, "DRAFT_TOKENS", 4)


def flat(rows: int, context: int) -> float:
    """Ticks of a step: four rows take as long as one; more take longer."""
    return 8 + max(0, rows - 4) / 2


def tuner(
    clock: Clock,
    file: Path,
    task: Task = TASK,
    *,
    level: float = 0.25,
    advance: Callable[[str], None] = lambda text: None,
) -> Tuner:
    """A run over the copying prompts, from fresh objects. level: ticks of a level of drafts."""
    kinds = {"one": "copy", "two": "mixed", "three": "copy"}
    prompts = [
        Prompt(name, kind, tuple(tokens))
        for (name, kind), tokens in zip(kinds.items(), copying_prompts(), strict=True)
    ]
    measured = Measured(file, task.about)
    return Tuner(related_decoder(), TimedSuffix(clock, level), prompts, task, measured, advance)


@cache
def copying_prompts() -> list[list[int]]:
    """Three prompts whose continuation by `related_decoder` repeats much of them."""
    decoder = related_decoder()
    return [start + plain(decoder, start, 70) for start in ([5, 60, 2, 33], [1, 2], [20, 3, 41])]


def trial(setting: Setting, speedup: float, typical: float | None = None) -> Trial:
    """What a search sees of a setting."""
    return Trial(
        setting=setting,
        batch_size=1,
        tokens=8,
        steps=4,
        rounds=4,
        drafted=6,
        accepted=4,
        passes=0,
        seconds={"draft": 0.0, "verify": 1.0, "accept": 0.0, "remap": 0.0},
        plain_by_group=(speedup,),
        ratios=(speedup if typical is None else typical,),
        identical=True,
    )


def save_checkpoint(folder: Path) -> Path:
    """`related_decoder` on disk, with a token per character."""
    torch_format = pytest.importorskip("safetensors.torch")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    torch_format.save_file(related_weights()[0], folder / "model.safetensors")
    char_tokenizer(CONFIG.vocab_size)._backend.save(str(folder / "tokenizer.json"))
    return folder
