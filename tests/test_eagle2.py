# SPDX-License-Identifier: Apache-2.0
"""eagle2: expand and rerank, against the rule written out; ties, saturation and small pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from treeattn.schedule import eagle2
from treeattn.tree import DraftTree

Path = tuple[int, ...]
# Few values, so that scores tie all the time; 0 is a saturated probability, -inf an absent token.
LEVELS = (0.0, -0.0, -0.5, -1.0, -1.5, -40.0, -math.inf)


@dataclass
class Laws:
    """Laws by path of tokens, made up on demand; remembers what was asked."""

    draw: st.DataObject | None
    vocab_size: int
    seed: int = 0
    rows: dict[Path, list[float]] = field(default_factory=dict)
    asked: list[list[Path]] = field(default_factory=list)

    def row(self, path: Path) -> list[float]:
        if path not in self.rows:
            if self.draw is not None:
                values = st.lists(
                    st.sampled_from(LEVELS), min_size=self.vocab_size, max_size=self.vocab_size
                )
                self.rows[path] = self.draw.draw(values)
            else:
                generator = torch.Generator().manual_seed(hash((self.seed, path)))
                law = torch.randn(self.vocab_size, generator=generator) * 3
                self.rows[path] = law.log_softmax(-1).tolist()
        return self.rows[path]

    def __call__(self, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        paths = [tuple(tree.tokens[tree.path(node)].tolist()) for node in nodes]
        self.asked.append(paths)
        return torch.tensor([self.row(path) for path in paths], dtype=torch.float32)


def written_out(laws: Laws, root: int, top_k: int, depth: int, num_nodes: int) -> dict[Path, float]:
    """The rule, with the pool as one list of (score, path): the kept paths and their scores."""
    pool: list[tuple[float, Path]] = [(0.0, (root,))]
    frontier = [0]
    for _ in range(depth):
        candidates = []
        for index in frontier:
            score, path = pool[index]
            row = torch.tensor(laws.row(path)).tolist()
            order = sorted(range(len(row)), key=lambda token: (-row[token], token))
            for token in order[:top_k]:
                if row[token] > -math.inf:
                    candidates.append(len(pool))
                    pool.append((score + row[token], (*path, token)))
        frontier = sorted(candidates, key=lambda index: (-pool[index][0], index))[:top_k]
    best = sorted(range(len(pool)), key=lambda index: (-pool[index][0], index))[:num_nodes]
    return {pool[index][1]: pool[index][0] for index in best}


def kept(tree: DraftTree) -> dict[Path, float]:
    assert tree.scores is not None
    return {
        tuple(tree.tokens[tree.path(node)].tolist()): float(tree.scores[node])
        for node in range(len(tree))
    }


def check(laws: Laws, top_k: int, depth: int, num_nodes: int) -> DraftTree:
    """Build, and hold the tree to the rule written out and to what every tree must be."""
    tree = eagle2(laws, 5, top_k=top_k, depth=depth, num_nodes=num_nodes)
    assert len(laws.asked) <= depth
    asked = [path for level in laws.asked for path in level]
    assert len(asked) == len(set(asked))
    expected = written_out(laws, 5, top_k, depth, num_nodes)
    found = kept(tree)
    assert len(found) == len(tree) <= num_nodes  # no path twice
    assert all(path[:-1] in found for path in found if len(path) > 1)
    assert found == pytest.approx(expected)
    assert tree.draws == "deterministic"
    assert tree == tree.dfs()
    return tree


@given(
    data=st.data(),
    vocab_size=st.integers(1, 5),
    top_k=st.integers(1, 4),
    depth=st.integers(1, 4),
    num_nodes=st.integers(1, 20),
)
def test_ties_and_saturation(
    data: st.DataObject, vocab_size: int, top_k: int, depth: int, num_nodes: int
) -> None:
    check(Laws(data, vocab_size), top_k, depth, num_nodes)


@pytest.mark.parametrize("seed", range(20))
def test_laws_of_a_model(seed: int) -> None:
    laws = Laws(None, 50, seed)
    tree = check(laws, top_k=8, depth=5, num_nodes=32)
    assert len(tree) == 32
    assert [len(level) for level in laws.asked][:2] == [1, 8]


def test_a_saturated_chain_keeps_the_first_found() -> None:
    """All tokens certain: every score is 0, so the order of the pool alone decides."""
    certain = [0.0, 0.0, 0.0]
    tree = eagle2(lambda _, nodes: torch.tensor([certain] * len(nodes)), 9, top_k=2, depth=3,
                  num_nodes=5)  # fmt: skip
    assert kept(tree) == {(9,): 0, (9, 0): 0, (9, 1): 0, (9, 0, 0): 0, (9, 0, 1): 0}


def test_a_small_pool_gives_a_small_tree() -> None:
    tree = eagle2(lambda _, nodes: torch.zeros(len(nodes), 1), 9, top_k=8, depth=3, num_nodes=32)
    assert tree == DraftTree([9, 0, 0, 0], [-1, 0, 1, 2], scores=[0.0] * 4)
    nothing = torch.full((1, 4), -math.inf)
    tree = eagle2(lambda _, nodes: nothing, 9, top_k=8, depth=3, num_nodes=32)
    assert tree == DraftTree([9], [-1], scores=[0.0])
    assert len(eagle2(lambda *_: pytest.fail("asked"), 9, top_k=8, depth=3, num_nodes=1)) == 1


def test_nothing_is_asked_that_cannot_be_kept() -> None:
    """One nearly sure token, and room for two nodes: no second level could displace them."""
    asked: list[list[int]] = []

    def log_probs(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        asked.append(list(nodes))
        return torch.tensor([[-3.0, -0.1, -2.0, -4.0]] * len(nodes))

    tree = eagle2(log_probs, 9, top_k=3, depth=9, num_nodes=3)
    assert tree.tokens.tolist() == [9, 1, 1]
    assert asked == [[0], [1, 2], [3]]


def test_scores_never_rise_along_a_path() -> None:
    """Rounding may leave a log probability above 0; it must not lift a child above its parent."""
    law = torch.tensor([[1e-3, -0.5, -1.0]])
    tree = eagle2(lambda _, nodes: law.expand(len(nodes), -1), 9, top_k=3, depth=4, num_nodes=4)
    assert tree.scores is not None and tree.scores.tolist() == [0.0] * 4
    assert tree.tokens.tolist() == [9, 0, 0, 0]


def test_the_tree_that_is_asked_about_only_grows() -> None:
    laws, trees = Laws(None, 30), []

    def log_probs(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        trees.append(tree)
        assert list(nodes) == list(range(len(tree) - len(nodes), len(tree)))
        return laws(tree, nodes)

    eagle2(log_probs, 5, top_k=4, depth=5, num_nodes=20)
    for before, after in pairwise(trees):
        assert after.keep([node < len(before) for node in range(len(after))]) == before


@pytest.mark.parametrize(
    ("law", "limits", "message"),
    [
        (torch.zeros(1, 4), {"top_k": 0}, "top_k must be >= 1, got 0"),
        (torch.zeros(1, 4), {"depth": 0}, "depth must be >= 1, got 0"),
        (torch.zeros(1, 4), {"num_nodes": 0}, "num_nodes must be >= 1, got 0"),
        (torch.zeros(2, 4), {}, r"log_probs must return a row per node, \[1, V\], got \[2, 4\]"),
        (torch.zeros(4), {}, r"log_probs must return a row per node, \[1, V\], got \[4\]"),
        (torch.tensor([[0.0, math.nan]]), {}, "log_probs must return log probabilities, got nan"),
    ],
)
def test_errors(law: Tensor, limits: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eagle2(lambda *_: law, 9, **{"top_k": 2, "depth": 2, "num_nodes": 4} | limits)
