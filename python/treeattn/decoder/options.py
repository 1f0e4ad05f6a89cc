# SPDX-License-Identifier: Apache-2.0
"""What a caller may ask of `generate` and `stream`, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import torch

from treeattn.decoder.drafters import Drafter
from treeattn.decoder.drafters.base import SHAPES, DrawsTokens
from treeattn.decoder.sampling import Sampling
from treeattn.schedule import Fixed, Online, Policy, Schedule

DRAFTERS = ("none", "lookup", "suffix", "layer_skip")


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `Decoder.generate`."""

    max_new_tokens: int
    drafter: str | Drafter = "suffix"
    num_nodes: int = 16
    shape: str = "tree"
    sampling: Sampling = field(default_factory=Sampling)
    seeds: int | Sequence[int] | None = None
    eos_ids: Iterable[int] | None = None
    ignore_eos: bool = False
    stop: str | Sequence[str] = ()
    logprobs: bool = False
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be >= 0, got {self.max_new_tokens}")
        named = self.drafter is None or isinstance(self.drafter, str)
        if named and self.drafter not in DRAFTERS:
            raise ValueError(
                f"drafter must be one of {', '.join(DRAFTERS)}, or a Drafter, as "
                f"Decoder.load_draft_head returns one; got {self.drafter!r}"
            )
        if self.num_nodes < 1:
            raise ValueError(f"num_nodes counts the root, so it must be >= 1, got {self.num_nodes}")
        if self.shape not in SHAPES:
            raise ValueError(f"shape must be one of {', '.join(SHAPES)}, got {self.shape!r}")
        self._check_rule()
        if "" in self.stop_strings:
            raise ValueError("stop must hold non-empty strings, got ''")
        if self.policy is not None and named and self.drafter != self.policy.drafter:
            raise ValueError(
                f"policy was made for the drafter {self.policy.drafter!r}, got drafter "
                f"{self.drafter!r}"
            )

    def _check_rule(self) -> None:
        rule = self.sampling.rule
        if rule == "block" and self.policy is None and self.shape != "chain":
            raise ValueError(f"rule block verifies chains: shape must be chain, got {self.shape!r}")
        draws = isinstance(self.drafter, DrawsTokens) or self.drafter in ("none", "layer_skip")
        if self.sampling.draws is not None and not draws:
            raise ValueError(
                f"rule {rule} needs a drafter that draws its tokens from a law it can tell: none, "
                f"layer_skip, a draft model or a draft head; got {self.drafter!r}, with which "
                f"greedy, target and typical work"
            )

    def schedule(self, max_rows: int, device: torch.device) -> Schedule:
        """The policy's, or `num_nodes` for every request and step. max_rows: most of a step."""
        if self.policy is None:
            return Fixed(self.num_nodes, self.shape)
        return Online(
            self.policy,
            max_rows,
            chains_only=self.sampling.rule == "block",
            drawn=self.sampling.draws is not None,
            device=device,
        )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def end_ids(self, default: Iterable[int]) -> frozenset[int]:
        """The ids that end a sequence; `default` are the checkpoint's."""
        if self.ignore_eos:
            return frozenset()
        return frozenset(default if self.eos_ids is None else self.eos_ids)

    def seeds_for(self, num_prompts: int) -> list[int]:
        """One seed per prompt; drawn by torch's generator when none are given."""
        if self.seeds is None:
            drawn: list[int] = torch.randint(2**63 - 1, (num_prompts,)).tolist()
            return drawn
        if isinstance(self.seeds, (int, Integral)):
            return [_seed(self.seeds)] * num_prompts
        if len(self.seeds) != num_prompts:
            raise ValueError(
                f"seeds must have one entry per prompt, {num_prompts}, got {len(self.seeds)}"
            )
        return [_seed(seed) for seed in self.seeds]


def _seed(value: Integral | int) -> int:
    seed = int(value)
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seeds must fit in int64, got {seed}")
    return seed
