# SPDX-License-Identifier: Apache-2.0
"""best_first_tree against every tree there is, and against all paths sorted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from treeattn.schedule import best_first_tree
from treeattn.tree import DraftTree

Path = tuple[int, ...]


def random_laws(seed: int, levels: int, vocab: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(levels, vocab, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1).to(dtype)


def all_paths(laws: Tensor) -> dict[Path, float]:
    """Every path below the root and its log probability, summed from the root."""
    paths: dict[Path, float] = {(): 0.0}
    for depth in range(laws.shape[0]):
        for path in [path for path in paths if len(path) == depth]:
            for token, log_prob in enumerate(laws[depth].tolist()):
                paths[(*path, token)] = paths[path] + min(log_prob, 0.0)
    del paths[()]
    return {path: score for path, score in paths.items() if score > -math.inf}


def token_paths(tree: DraftTree) -> list[Path]:
    return [tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, len(tree))]


def check(tree: DraftTree, laws: Tensor, num_nodes: int) -> None:
    """The best of all paths, each with its own score, in depth-first order."""
    paths = all_paths(laws)
    found = token_paths(tree)
    assert len(set(found)) == len(found) == min(num_nodes - 1, len(paths))
    assert tree.scores is not None and tree.draws == "deterministic"
    assert tree.scores.tolist() == [0.0, *(paths[path] for path in found)]
    assert sorted(tree.scores[1:], reverse=True) == sorted(paths.values())[::-1][: len(found)]
    assert tree.dfs() == tree


@pytest.mark.parametrize(("levels", "vocab"), [(1, 8), (2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("num_nodes", range(1, 7))
def test_no_tree_has_more_expected_tokens(levels: int, vocab: int, num_nodes: int) -> None:
    """Of all sets of nodes that are trees."""
    for seed in range(4):
        laws = random_laws(seed, levels, vocab)
        paths = all_paths(laws)
        size = min(num_nodes - 1, len(paths))
        best = max(
            sum(math.exp(paths[path]) for path in nodes)
            for nodes in itertools.combinations(paths, size)
            if all(len(path) == 1 or path[:-1] in nodes for path in nodes)
        )
        tree = best_first_tree(laws, num_nodes)
        assert tree.scores is not None
        assert np.exp(tree.scores[1:]).sum() == pytest.approx(best, rel=1e-12)
        check(tree, laws, num_nodes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_nodes", [2, 40, 1000])
def test_the_best_of_all_paths(num_nodes: int, dtype: torch.dtype) -> None:
    laws = random_laws(num_nodes, 4, 6, dtype)  # bfloat16 has ties
    check(best_first_tree(laws, num_nodes), laws, num_nodes)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), num_nodes=st.integers(1, 30))
def test_ties_zeros_and_certainties(data: st.DataObject, num_nodes: int) -> None:
    """Log probabilities that are equal, 0 and a little above, or -inf."""
    levels, vocab = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
    value = st.sampled_from([0.0, 1e-7, -0.5, -1.0, -math.inf])
    values = data.draw(
        st.lists(st.lists(value, min_size=vocab, max_size=vocab), min_size=levels, max_size=levels)
    )
    laws = torch.tensor(values, dtype=torch.float64).reshape(levels, vocab)
    check(best_first_tree(laws, num_nodes), laws, num_nodes)


def test_ties_go_to_the_smaller_token() -> None:
    tree = best_first_tree(torch.zeros(1, 5), 4)
    assert tree.tokens.tolist() == [-1, 0, 1, 2]


def test_more_tokens_than_nodes() -> None:
    """The candidates of a level that can matter are kept in one pass over it."""
    laws = random_laws(7, 3, 5000, torch.float32)
    wide = best_first_tree(laws, 50, root_token=9)
    best = laws.sort(descending=True, stable=True)
    narrow = best_first_tree(best.values[:, :49], 50)
    named = best.indices.numpy()[narrow.depths[1:] - 1, narrow.tokens[1:]]
    assert wide.tokens.tolist() == [9, *named]
    assert np.array_equal(wide.parents, narrow.parents)


def test_any_layout() -> None:
    laws = random_laws(0, 3, 6)
    expected = best_first_tree(laws, 12)
    assert best_first_tree(laws.T.contiguous().T, 12) == expected
    assert best_first_tree(laws.numpy(), 12) == expected
    assert best_first_tree(laws.requires_grad_(), 12) == expected


@pytest.mark.parametrize(
    ("laws", "num_nodes", "message"),
    [
        (torch.zeros(2, 3), 0, r"num_nodes must be in \[1, 2\^31\) \(the root counts\), got 0"),
        (torch.zeros(3), 4, r"log_probs must be \[levels, V\] of a float dtype, got \[3\]"),
        (torch.zeros(2, 3, dtype=torch.int64), 4, r"of a float dtype, got \[2, 3\], torch.int64"),
        (torch.tensor([[0.0, 0.0], [0.0, torch.nan]]), 4, r"got log_probs\[1, 1\] = nan"),
    ],
    ids=["none", "shape", "dtype", "nan"],
)
def test_bad_input(laws: Tensor, num_nodes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best_first_tree(laws, num_nodes)
