# SPDX-License-Identifier: Apache-2.0
"""What decides where fp32 and fp64 may differ: the oracle itself, on inputs a little beside.

Random numbers are compared with sums of many rounded numbers. Where one lies within the rounding of
its boundary, an op in fp32 may fall to the other side. Such an outcome must be the oracle's own on
inputs that differ by some fp32 roundings; any other is a fault. Equal logits stay equal, so a tie
that went the wrong way is never excused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from treeattn import reference
from treeattn.ops import AcceptedPath
from treeattn.plan import TreePlan
from treeattn.reference.randomness import Seeded

from support.acceptance import INTEGER_FIELDS

LOG_FIELDS = ("logprobs", "processed_logprobs")
NEAR = 4e-6
TRIES = 60
BELOW_ONE = 1 - 2.0**-24


def differences(got: AcceptedPath, want: Any, request: int) -> dict[str, tuple[Any, Any]]:
    """The fields in which a request's results differ, log probabilities beyond rounding."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in (*INTEGER_FIELDS, *LOG_FIELDS):
        a, b = getattr(got, name), getattr(want, name)
        assert (a is None) == (b is None), name
        if a is None:
            continue
        a, b = a[request].cpu(), b[request]
        exact = name in INTEGER_FIELDS
        if not torch.allclose(a, b, rtol=0, atol=0 if exact else 2e-5, equal_nan=True):
            found[name] = a.tolist(), b.tolist()
    return found


def is_nearby(
    got: AcceptedPath,
    request: int,
    logits: Tensor,
    tokens: Tensor,
    plan: TreePlan,
    options: dict[str, Any],
) -> bool:
    """Whether the oracle gives a request this outcome on inputs beside those given."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(TRIES):
        moved = _moved(rng, generator, options)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("coin", "uniform"):
                patch.setattr(Seeded, name, _shaken(rng, getattr(Seeded, name)))
            want = reference.accept_path(logits, tokens, plan, **moved)
        if not differences(got, want, request):
            return True
    return False


def _shaken(rng: random.Random, number: Callable[..., float]) -> Callable[..., float]:
    def shaken(*arguments: Any) -> float:
        return min(max(number(*arguments) + rng.uniform(-NEAR, NEAR), 0.0), BELOW_ONE)

    return shaken


def _moved(
    rng: random.Random, generator: torch.Generator, options: dict[str, Any]
) -> dict[str, Any]:
    def noise(like: Tensor) -> Tensor:
        """For each entry, and for each row as a whole."""
        shapes = like.shape, (*like.shape[:-1], 1)
        return sum(
            (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1) * NEAR
            for shape in shapes
        )

    moved = {**options}
    for name in ("temperature", "top_p", "min_p", "draft_probs", "typical_epsilon"):
        value = options.get(name, {"temperature": 1.0, "typical_epsilon": 0.3}.get(name))
        if isinstance(value, Tensor):
            moved[name] = value.double() * (1 + noise(value))
        elif value is not None:
            moved[name] = value * (1 + rng.uniform(-NEAR, NEAR))
    if "draft_logits" in options:
        moved["draft_logits"] = options["draft_logits"].double() + noise(options["draft_logits"])
    if "uniforms" in options:
        moved["uniforms"] = (options["uniforms"].double() + noise(options["uniforms"])).clamp(
            0, BELOW_ONE
        )
    return moved
