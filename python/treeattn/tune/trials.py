# SPDX-License-Identifier: Apache-2.0
"""One setting against plain decoding, step by step in turns, at the same batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, TypeVar

from treeattn.decoder import Decoder, Drafter, Generation, Options
from treeattn.decoder.drafters import DraftsByLevel
from treeattn.schedule import Policy
from treeattn.schedule.replay import PHASES
from treeattn.tune.passes import CountsPasses

T = TypeVar("T")
EVERY_LEVEL = "policy, every level"


@dataclass(frozen=True)
class Setting:
    """num_nodes: of a draft, the root counted.

    shape: "tree", "chain", "off", "policy", or EVERY_LEVEL: the policy, but drafts are not stopped
    on their way.
    """

    shape: str
    num_nodes: int

    @property
    def follows_policy(self) -> bool:
        return self.shape in ("policy", EVERY_LEVEL)

    def __str__(self) -> str:
        alone = self.shape == "off" or self.follows_policy
        return self.shape if alone else f"{self.shape}-{self.num_nodes}"


@dataclass(frozen=True)
class Trial:
    """Totals over the same groups of prompts, without the time to read them.

    steps: of the requests; rounds: of the batch. passes: of the drafter's model, where it drafts
    level by level. seconds: of the setting, by phase. plain_by_group: of each group of prompts that
    was decoded together, the seconds that plain decoding beside it took for as many tokens;
    ratios: those over the setting's own. identical: whether the tokens are those of plain decoding.
    """

    setting: Setting
    batch_size: int
    tokens: int
    steps: int
    rounds: int
    drafted: int
    accepted: int
    passes: int
    seconds: Mapping[str, float]
    plain_by_group: tuple[float, ...]
    ratios: tuple[float, ...]
    identical: bool

    @property
    def speedup(self) -> float:
        """Tokens per second against plain decoding."""
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


def groups(items: Sequence[T], size: int) -> list[list[T]]:
    """All of them, `size` at a time; they begin again to fill the last group."""
    starts = range(0, len(items), size)
    return [[items[(start + i) % len(items)] for i in range(size)] for start in starts]


def try_setting(
    decoder: Decoder,
    drafter: Drafter,
    setting: Setting,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    max_new_tokens: int,
    policy: Policy | None = None,
) -> Trial:
    """Decode each of the `groups` of prompts twice: plainly and by `setting`, side by side.

    policy: for the settings that follow one.
    """
    counted = CountsPasses(drafter) if isinstance(drafter, DraftsByLevel) else None
    drafter = counted or drafter
    plain_options = Options(max_new_tokens, drafter="none", num_nodes=1)
    if setting.shape == "off":
        options = plain_options
    elif setting.shape == "policy":
        options = Options(max_new_tokens, drafter, policy=policy)
    elif policy is not None and setting.shape == EVERY_LEVEL:
        options = Options(max_new_tokens, drafter, policy=unstopped(policy))
    else:
        options = Options(max_new_tokens, drafter, setting.num_nodes, setting.shape)
    seconds = dict.fromkeys(PHASES, 0.0)
    plain_by_group: list[float] = []
    ratios: list[float] = []
    counts = dict.fromkeys(("tokens", "steps", "rounds", "drafted", "accepted"), 0)
    identical = True
    for group in groups(prompts, batch_size):
        plain, ours = _side_by_side(decoder, group, plain_options, options)
        plain_seconds, our_seconds = _by_phase(plain), _by_phase(ours)
        for phase in PHASES:
            seconds[phase] += our_seconds[phase]
        as_many = _num_tokens(ours) / _num_tokens(plain)
        plain_by_group.append(as_many * sum(plain_seconds.values()))
        ratios.append(plain_by_group[-1] / sum(our_seconds.values()))
        counts["tokens"] += _num_tokens(ours)
        counts["rounds"] += max(out.stats.steps for out in ours)
        for out in ours:
            counts["steps"] += out.stats.steps
            counts["drafted"] += out.stats.drafted
            counts["accepted"] += sum(out.stats.accepted)
        identical &= [out.tokens for out in plain] == [out.tokens for out in ours]
    return Trial(
        setting=setting,
        batch_size=batch_size,
        seconds=seconds,
        plain_by_group=tuple(plain_by_group),
        ratios=tuple(ratios),
        identical=identical,
        passes=0 if counted is None else counted.passes,
        **counts,
    )


def _side_by_side(
    decoder: Decoder, prompts: Sequence[Sequence[int]], one: Options, other: Options
) -> tuple[list[Generation], list[Generation]]:
    """Both decode the prompts; whichever has emitted less takes the next step, so that a moment in
    which the machine is slow costs both. All prompts are read before the first step: a batch is
    full from there on, until its requests end."""
    with (
        decoder.start(prompts, one, prefill_budget=math.inf) as first,
        decoder.start(prompts, other, prefill_budget=math.inf) as second,
    ):
        while busy := [run for run in (first, second) if run.busy]:
            min(busy, key=lambda run: run.num_tokens).step()
        return first.results(), second.results()


def unstopped(policy: Policy) -> Policy:
    """Without the costs of drafting: nothing then says that a level does not pay."""
    costs = policy.costs
    batches = {size: replace(tables, draft=()) for size, tables in costs.batches.items()}
    return replace(policy, costs=replace(costs, draft=(), batches=batches))


def _num_tokens(outs: Sequence[Generation]) -> int:
    return sum(len(out.tokens) for out in outs)


def _by_phase(outs: Sequence[Generation]) -> dict[str, float]:
    return {phase: sum(out.stats.seconds[phase] for out in outs) for phase in PHASES}
