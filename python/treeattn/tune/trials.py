# SPDX-License-Identifier: Apache-2.0
"""One setting against plain decoding, prompt by prompt, at the same batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from treeattn.decoder import Decoder, Drafter, Generation

PHASES = ("draft", "verify", "accept", "remap")


@dataclass(frozen=True)
class Setting:
    """shape: "tree", "chain", "off" or "policy". num_nodes: of a draft, the root counted."""

    shape: str
    num_nodes: int

    def __str__(self) -> str:
        return self.shape if self.shape in ("off", "policy") else f"{self.shape}-{self.num_nodes}"


@dataclass(frozen=True)
class Trial:
    """Totals over the same prompts, without the time to read them.

    steps: of the requests; rounds: of the batch, shared by its requests. seconds: of the setting,
    by phase. plain_by_group: seconds of plain decoding in between, of each group of prompts that
    was decoded together; ratios: plain over setting. identical: the tokens.
    """

    setting: Setting
    batch_size: int
    tokens: int
    steps: int
    rounds: int
    drafted: int
    accepted: int
    seconds: Mapping[str, float]
    plain_by_group: tuple[float, ...]
    ratios: tuple[float, ...]
    identical: bool

    @property
    def speedup(self) -> float:
        return sum(self.plain_by_group) / sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / sum(self.seconds.values())

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps

    @property
    def typical(self) -> float:
        """The median group's speed-up: what one bad moment of the machine does not move."""
        return median(self.ratios)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        groups = {name: tuple(data[name]) for name in ("plain_by_group", "ratios")}
        return cls(**{**data, **groups, "setting": Setting(**data["setting"])})


def try_setting(
    decoder: Decoder,
    drafter: str | Drafter,
    setting: Setting,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_new_tokens: int,
    policy: Any = None,
) -> Trial:
    """Decode every group of `batch_size` prompts twice: plainly and by `setting`, in turns.

    Which goes first alternates, so that a machine that grows slower favours neither.
    """
    if setting.shape == "off":
        options: dict[str, Any] = {"drafter": "none", "num_nodes": 1}
    elif setting.shape == "policy":
        options = {"drafter": drafter, "policy": policy}
    else:
        options = {"drafter": drafter, "num_nodes": setting.num_nodes, "shape": setting.shape}
    plain_options: dict[str, Any] = {"drafter": "none", "num_nodes": 1}
    groups = [prompts[i : i + batch_size] for i in range(0, len(prompts), batch_size)]
    seconds = dict.fromkeys(PHASES, 0.0)
    plain_by_group: list[float] = []
    ratios: list[float] = []
    counts = dict.fromkeys(("tokens", "steps", "rounds", "drafted", "accepted"), 0)
    identical = True
    for index, group in enumerate(groups):
        outs: dict[bool, list[Generation]] = {}
        for is_plain in (True, False) if index % 2 == 0 else (False, True):
            chosen = plain_options if is_plain else options
            outs[is_plain] = decoder.generate(group, max_new_tokens=max_new_tokens, **chosen)
        spent = {is_plain: _by_phase(out) for is_plain, out in outs.items()}
        for phase in PHASES:
            seconds[phase] += spent[False][phase]
        plain_by_group.append(sum(spent[True].values()))
        ratios.append(plain_by_group[-1] / sum(spent[False].values()))
        counts["rounds"] += max(out.stats.steps for out in outs[False])
        for plain, out in zip(outs[True], outs[False], strict=True):
            identical &= plain.tokens == out.tokens
            counts["tokens"] += len(out.tokens)
            counts["steps"] += out.stats.steps
            counts["drafted"] += out.stats.drafted
            counts["accepted"] += sum(out.stats.accepted)
    return Trial(
        setting=setting,
        batch_size=batch_size,
        seconds=seconds,
        plain_by_group=tuple(plain_by_group),
        ratios=tuple(ratios),
        identical=identical,
        **counts,
    )


def _by_phase(outs: Sequence[Generation]) -> dict[str, float]:
    return {phase: sum(out.stats.seconds[phase] for out in outs) for phase in PHASES}
