# SPDX-License-Identifier: Apache-2.0
"""Fixed: the same draft for every request and step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from treeattn.schedule import Fixed
from treeattn.tree import DraftTree


@dataclass(eq=False)
class Drafting:
    seq: int
    context: int = 100
    room: int = 50


def test_fixed_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="max_nodes must be >= 1, the root counts; got 0"):
        Fixed(0)
    with pytest.raises(ValueError, match="shape must be tree or chain, got 'bush'"):
        Fixed(3, "bush")


def test_fixed_is_fixed() -> None:
    fixed = Fixed(5, "chain")
    assert fixed.budget(1) == fixed.budget(64) == (5, "chain")
    assert fixed.ask([Drafting(0)] * 3) == [True] * 3
    trees = [DraftTree.chain(range(9)), DraftTree.chain([0])]
    assert fixed.cut([Drafting(0)] * 2, trees) == trees
