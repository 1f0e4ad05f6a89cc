# SPDX-License-Identifier: Apache-2.0
"""A18: padding ids are never looked up, never accepted and never emitted."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support.acceptance import one_hot_logits, plan_of

VOCAB = 12
SIZES = (3, 1)  # real nodes of the two requests; five rows each
CAPACITY = 10


def accept(padding: int, dtype: torch.dtype) -> treeattn.AcceptedPath:
    """Request 0 holds [9, 1, 0] and accepts both drafts; request 1 holds its root alone."""
    plan = plan_of([[-1, 0, 1], [-1]], max_depth=2, capacity=CAPACITY)
    tokens = torch.tensor([9, 1, 0, 9] + [padding] * 6, dtype=dtype)
    logits = one_hot_logits([1, 0, 7, 5] + [2] * 6, VOCAB)
    return treeattn.accept_path(logits, tokens, plan)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("padding", [-1, VOCAB, 2**31 - 1, 2])
def test_rows_past_the_sizes_do_not_exist(padding: int, dtype: torch.dtype) -> None:
    accepted = accept(padding, dtype)
    assert accepted.num_accepted.tolist() == [2, 0]
    assert accepted.emitted.tolist() == [[1, 0, 7], [5, -1, -1]]
    assert accepted.path.tolist() == [[0, 1, 2], [0, -1, -1]]


@pytest.mark.parametrize("padding", [-1, VOCAB, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("rule", ["greedy", "target"])
def test_a_padding_node_inside_a_tree_is_never_accepted(padding: int, rule: str) -> None:
    """Sizes that count padded nodes: they lie in the tree, and nothing ever follows them."""
    plan = plan_of([[-1, 0, 0, 1]])
    tokens = torch.tensor([9, padding, 3, padding])
    accepted = treeattn.accept_path(
        one_hot_logits([3, 3, 4, 3], VOCAB), tokens, plan, rule=rule, seeds=1
    )
    assert accepted.emitted.tolist() == [[3, 4, -1]]
    assert accepted.path.tolist() == [[0, 2, -1]]


def test_missing_sizes_are_an_error_not_a_guess() -> None:
    """Five padded rows a request, and an indptr that leaves rows over without a max_depth."""
    with pytest.raises(ValueError, match="node_indptr"):
        plan_of([[-1, 0, 1], [-1]], capacity=CAPACITY)
