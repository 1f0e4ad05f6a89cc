# SPDX-License-Identifier: Apache-2.0
"""Fault A30 for DraftTree: a tree description of the wrong shape is refused, with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from treeattn.tree import DraftTree


@dataclass(frozen=True)
class Bad:
    name: str
    message: str
    tokens: Any = (1, 2, 3)
    parents: Any = (-1, 0, 1)
    scores: Any = None
    draws: Any = "deterministic"
    draft_rows: Any = None

    def __str__(self) -> str:
        return self.name


BAD = [
    Bad("no root", r"parents\[0\] must be -1, node 0 is the root; got 0", parents=[0, 0, 1]),
    Bad("root -2", r"parents\[0\] must be -1.*got -2", parents=[-2, 0, 1]),
    Bad("second root", r"parents\[2\] = -1 makes node 2 a second root", parents=[-1, 0, -1]),
    Bad("own parent", r"parents\[1\] must be in \[0, 1\).*got 1", parents=[-1, 1, 0]),
    Bad("later parent", r"parents\[1\] must be in \[0, 1\).*got 2", parents=[-1, 2, 0]),
    Bad("cycle", r"parents\[1\] must be in \[0, 1\).*got 2", parents=[-1, 2, 1]),
    Bad("below -1", r"parents\[1\] must be in \[0, 1\).*got -3", parents=[-1, -3, 0]),
    Bad("huge", r"parents\[2\] must be in \[0, 2\).*got 4294967296", parents=[-1, 0, 2**32]),
    Bad("few parents", r"parents must have one entry.*\[3\], got \[2\]", parents=[-1, 0]),
    Bad("many parents", r"parents must have one entry.*\[3\], got \[4\]", parents=[-1, 0, 1, 2]),
    Bad("no parents", r"parents must have one entry.*\[3\], got \[0\]", parents=[]),
    Bad("float parents", r"parents must be.*integers.*float64", parents=[-1.0, 0.0, 1.0]),
    Bad("float tokens", r"tokens must be.*integers.*float64", tokens=[1.0, 2.0, 3.0]),
    Bad("bool tokens", r"tokens must be.*integers.*bool", tokens=[True, False, True]),
    Bad("uint64 tokens", r"tokens must be.*uint64", tokens=np.array([1, 2, 3], np.uint64)),
    Bad("too large token", r"tokens must be.*integers", tokens=[1, 2, 2**70]),
    Bad("2-D tokens", r"tokens must be.*got shape \[1, 3\]", tokens=[[1, 2, 3]]),
    Bad("ragged tokens", r"tokens must be a 1-D sequence of integers", tokens=[[1, 2], [3]]),
    Bad("scalar tokens", r"tokens must be.*got shape \[\]", tokens=3),
    Bad("few scores", r"scores must have one entry.*\[3\], got \[2\]", scores=[0.0, -1.0]),
    Bad("nan score", r"scores must be log probabilities.*scores\[1\]", scores=[0, np.nan, 0]),
    Bad("draws", r"draws must be one of deterministic, iid.*got 'random'", draws="random"),
    Bad("few rows", r"draft_rows must have one entry.*\[3\], got \[1\]", draft_rows=[0]),
    Bad("negative row", r"draft_rows\[2\] must be a row of draft_probs", draft_rows=[-1, 0, -1]),
    Bad("huge row", r"draft_rows\[1\] must be a row.*got 4294967296", draft_rows=[-1, 2**32, 0]),
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_tree_is_refused(bad: Bad) -> None:
    with pytest.raises(ValueError, match=bad.message):
        DraftTree(bad.tokens, bad.parents, bad.scores, bad.draws, bad.draft_rows)


def test_the_same_tree_without_the_breach_is_accepted() -> None:
    DraftTree([1, 2, 3], [-1, 0, 1], [0.0, -1.0, -2.0], "iid", [-1, 0, 1])


def test_equal_siblings_are_legal_and_stay_apart() -> None:
    tree = DraftTree([1, 2, 2], [-1, 0, 0], draws="iid")
    assert tree.children(0) == [1, 2]
