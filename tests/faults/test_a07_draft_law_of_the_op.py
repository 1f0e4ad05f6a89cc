# SPDX-License-Identifier: Apache-2.0
"""A07 by the op itself: the law of what it emits, on the fault's own numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.enumerate import Toy, branching, iid, swor
from support.enumerate_op import emitted_by_op
from support.rules import CALLS
from torch import Tensor
from treeattn.reference import rules

MACHINES = "all"
pytestmark = pytest.mark.usefixtures("machine")

ONE_NODE: list[tuple[str, Any]] = [
    ("multistep", rules.multistep),
    ("swor", rules.swor),
    ("block", rules.block),
]


def law(*masses: float) -> Tensor:
    return torch.tensor(masses, dtype=torch.float64)


def first_tokens(target: Tensor, draft: Tensor, parents: list[int], name: str, rule: Any) -> Any:
    model = Toy(len(target), lambda history: target, (lambda history: draft,))
    draw = swor if name == "swor" else iid
    result = emitted_by_op(model, parents, draw, rule, CALLS[name])
    found = [0.0] * len(target)
    for tokens, weight in result.weights.items():
        found[tokens[0]] += weight
    return found, result.mean_length()


@pytest.mark.parametrize(("name", "rule"), ONE_NODE, ids=[name for name, _ in ONE_NODE])
def test_filtered_draft(name: str, rule: Any) -> None:
    found, _ = first_tokens(law(0.7, 0.2, 0.1), law(0.5, 0.5, 0), [-1, 0], name, rule)
    assert found == pytest.approx([0.7, 0.2, 0.1], abs=1e-6)


def test_siblings_without_replacement() -> None:
    found, length = first_tokens(
        law(0.5, 0.3, 0.2, 0), law(0.4, 0.4, 0.1, 0.1), branching(2), "swor", rules.swor
    )
    assert found == pytest.approx([0.5, 0.3, 0.2, 0], abs=1e-6)
    assert length - 1 == pytest.approx(0.83 / 0.9, abs=1e-6)  # 0.92222
