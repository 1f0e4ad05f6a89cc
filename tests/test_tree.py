# SPDX-License-Identifier: Apache-2.0
"""DraftTree and pack: structure, orders, batches. What must be refused: faults/test_a30."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from treeattn.tree import DraftTree, pack

#        0
#      1   2
#    3   4   5      (3 below 1; 4 and 5 below 2)
#  6                (below 3)
TOKENS = [9, 1, 2, 3, 4, 5, 6]
PARENTS = [-1, 0, 0, 1, 2, 2, 3]


def random_tree(seed: int, num_nodes: int, draws: str = "deterministic") -> DraftTree:
    rng = np.random.default_rng(seed)
    parents = [-1] + [int(rng.integers(0, i)) for i in range(1, num_nodes)]
    scores = [0.0]
    for i in range(1, num_nodes):
        scores.append(scores[parents[i]] + float(np.log(rng.uniform(0.05, 1.0))))
    return DraftTree(rng.integers(0, 50, num_nodes), parents, scores, draws)


def test_follow_walks_as_far_as_the_tree_holds_the_tokens() -> None:
    tree = DraftTree([7, 3, 5, 3, 1, 4], [-1, 0, 0, 0, 1, 3])
    assert tree.follow([]) == [0]
    assert tree.follow([3, 1, 9]) == [0, 1, 4]
    assert tree.follow([3, 4]) == [0, 1]  # of siblings with one token the first is taken
    assert tree.follow([9, 3]) == [0]
    assert DraftTree([], []).follow([1]) == []


def test_fields_are_read_only_copies() -> None:
    parents = np.array(PARENTS, dtype=np.int64)
    tree = DraftTree(TOKENS, parents)
    parents[1] = 77
    assert tree.parents.tolist() == PARENTS
    assert (tree.tokens.dtype, tree.parents.dtype) == (np.int64, np.int32)
    with pytest.raises(ValueError, match="read-only"):
        tree.parents[1] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.draws = "iid"  # type: ignore[misc]
    assert parents.flags.writeable


def test_takes_torch_tensors_and_int32() -> None:
    tree = DraftTree(torch.tensor(TOKENS), np.array(PARENTS, dtype=np.int32))  # type: ignore[arg-type]
    assert tree == DraftTree(TOKENS, PARENTS)


def test_structure() -> None:
    tree = DraftTree(TOKENS, PARENTS)
    assert len(tree) == 7
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert [tree.children(i) for i in range(7)] == [[1, 2], [3], [4, 5], [6], [], [], []]
    assert tree.path(6) == [0, 1, 3, 6]
    assert tree.path(0) == [0]
    for i in (-1, 7):
        with pytest.raises(ValueError, match=rf"node id in \[0, 7\), got {i}"):
            tree.children(i)
        with pytest.raises(ValueError, match=rf"node id in \[0, 7\), got {i}"):
            tree.path(i)


def test_positions_follow_the_parents() -> None:
    """Depth comes from the parent, not from the row before (fault A14)."""
    tree = DraftTree([0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2])
    assert (10 + tree.depths).tolist() == [10, 11, 11, 12, 12, 12]
    # Level 2 hangs below the level-1 nodes 2, 1, 2, not below 1, 2, 3.
    assert DraftTree([0, 1, 2, 3, 4, 5], [-1, 0, 0, 2, 1, 3]).depths.tolist() == [0, 1, 1, 2, 2, 3]


def test_empty_tree() -> None:
    tree = DraftTree([], [])
    assert len(tree) == 0
    assert tree.keep([]) == tree
    assert tree.dfs() == tree


def test_chain() -> None:
    tree = DraftTree.chain([4, 5, 6])
    assert tree.tokens.tolist() == [4, 5, 6]
    assert tree.parents.tolist() == [-1, 0, 1]
    assert len(DraftTree.chain([4])) == 1
    with pytest.raises(ValueError, match="tokens must hold the root"):
        DraftTree.chain([])


def test_from_paths_shares_prefixes_in_order_of_first_appearance() -> None:
    tree = DraftTree.from_paths(7, [[1, 2], [3], [1, 4, 2], [1, 2, 5], []])
    assert tree.tokens.tolist() == [7, 1, 2, 3, 4, 2, 5]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 1, 4, 2]
    assert len(DraftTree.from_paths(7, [])) == 1


def test_equality_looks_at_every_field() -> None:
    tree = DraftTree([1, 2], [-1, 0], [0.0, -1.0], "iid", [-1, 0])
    assert tree == DraftTree([1, 2], [-1, 0], [0.0, -1.0], "iid", [-1, 0])
    for other in (
        DraftTree([1, 3], [-1, 0], [0.0, -1.0], "iid", [-1, 0]),
        DraftTree([1, 2], [-1, 0], [0.0, -2.0], "iid", [-1, 0]),
        DraftTree([1, 2], [-1, 0], None, "iid", [-1, 0]),
        DraftTree([1, 2], [-1, 0], [0.0, -1.0], "swor", [-1, 0]),
        DraftTree([1, 2], [-1, 0], [0.0, -1.0], "iid", [-1, 1]),
    ):
        assert tree != other
    assert tree != "tree"


def test_keep_drops_rows_and_renumbers_parents() -> None:
    scores = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    tree = DraftTree(TOKENS, PARENTS, scores)
    kept = tree.keep([True, False, True, False, True, True, False])
    assert kept == DraftTree([9, 2, 4, 5], [-1, 0, 1, 1], [0.0, -2.0, -4.0, -5.0])
    assert tree.keep(np.ones(7, bool)) == tree


def test_keep_cuts_only_the_deep_branch() -> None:
    """Nodes at positions past the maximum length go, the shallow branch stays (fault A21)."""
    tree = DraftTree([0, 1, 2, 3, 4, 5], [-1, 0, 1, 2, 3, 0])
    max_len, context_len = 16, 13
    kept = tree.keep(context_len + tree.depths < max_len)
    assert kept.tokens.tolist() == [0, 1, 2, 5]
    assert kept.parents.tolist() == [-1, 0, 1, 0]


def test_keep_refuses_orphans() -> None:
    tree = DraftTree(TOKENS, PARENTS)
    with pytest.raises(ValueError, match=r"mask must keep the root, got mask\[0\] = False"):
        tree.keep([False] * 7)
    with pytest.raises(ValueError, match=r"mask\[6\] = True, but its parent is node 3 and mask\[3"):
        tree.keep([True, True, True, False, True, True, True])
    with pytest.raises(ValueError, match=r"mask must be \[7\] bool.*shape \[3\]"):
        tree.keep([True] * 3)
    with pytest.raises(ValueError, match=r"mask must be \[7\] bool.*dtype int64"):
        tree.keep([1, 1, 1, 1, 1, 1, 1])  # type: ignore[list-item]


def test_dfs_puts_the_likeliest_child_first() -> None:
    scores = [0.0, -2.0, -1.0, -3.0, -5.0, -4.0, -6.0]
    tree = DraftTree(TOKENS, PARENTS, scores).dfs()
    assert tree.tokens.tolist() == [9, 2, 5, 4, 1, 3, 6]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 0, 4, 5]
    assert tree.scores is not None
    assert tree.scores.tolist() == [0.0, -1.0, -4.0, -5.0, -2.0, -3.0, -6.0]
    tied = DraftTree([0, 1, 2, 3], [-1, 0, 0, 0], [0.0, -1.0, -0.5, -1.0]).dfs()
    assert tied.tokens.tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("draws", ["iid", "swor", "mixed", "pruned"])
def test_dfs_keeps_the_order_of_sampled_siblings(draws: str) -> None:
    scores = [0.0, -2.0, -1.0, -3.0, -5.0, -4.0, -6.0]
    tree = DraftTree(TOKENS, PARENTS, scores, draws).dfs()
    assert tree.tokens.tolist() == [9, 1, 3, 6, 2, 4, 5]


def test_dfs_without_scores_keeps_sibling_order() -> None:
    assert DraftTree(TOKENS, PARENTS).dfs().tokens.tolist() == [9, 1, 3, 6, 2, 4, 5]


@pytest.mark.parametrize("draws", ["iid", "swor"])
def test_reordered_sampled_trees_keep_naming_their_draft_rows(draws: str) -> None:
    tree = DraftTree(TOKENS, PARENTS, draws=draws)
    reordered = tree.dfs()  # nodes 0 1 3 6 2 4 5
    assert reordered.draft_rows is not None
    assert reordered.draft_rows.tolist() == [-1, 0, 1, 3, 0, 2, 2]
    kept = reordered.keep([True, True, False, False, True, False, True])  # nodes 0 1 2 5
    assert kept.draft_rows is not None
    assert kept.draft_rows.tolist() == [-1, 0, 0, 2]
    assert DraftTree(TOKENS, PARENTS).dfs().draft_rows is None


@pytest.mark.parametrize("seed", range(20))
def test_dfs_is_the_same_tree(seed: int) -> None:
    tree = random_tree(seed, 1 + 3 * seed)
    ordered = tree.dfs()

    def branches(t: DraftTree) -> list[tuple[int, ...]]:
        return sorted(tuple(t.tokens[t.path(i)].tolist()) for i in range(len(t)))

    assert branches(ordered) == branches(tree)
    for i in range(1, len(ordered)):  # depth first: the parent is on the path of the node before
        assert int(ordered.parents[i]) in ordered.path(i - 1)
    assert ordered.dfs() == ordered


def test_pack() -> None:
    a = DraftTree(TOKENS, PARENTS)
    b = DraftTree.chain([5, 6])
    batch = pack([a, None, b, DraftTree([], [])])
    assert batch.tokens.tolist() == [*TOKENS, 5, 6]
    assert batch.parents.tolist() == [*PARENTS, -1, 0]
    assert batch.node_indptr.tolist() == [0, 7, 7, 9, 9]
    dtypes = (batch.tokens.dtype, batch.parents.dtype, batch.node_indptr.dtype)
    assert dtypes == (torch.int64, torch.int32, torch.int32)
    assert batch.max_depth == 3
    assert batch.draws == ["deterministic", None, "deterministic", "deterministic"]
    assert batch.trees[2] is b


@pytest.mark.parametrize("trees", [[], [None], [None, None]], ids=len)
def test_pack_without_nodes(trees: list[DraftTree | None]) -> None:
    batch = pack(trees, device="cpu")
    assert batch.tokens.shape == batch.parents.shape == (0,)
    assert batch.tokens.dtype == torch.int64
    assert batch.parents.dtype == torch.int32
    assert batch.node_indptr.tolist() == [0] * (len(trees) + 1)
    assert batch.max_depth == 0


def test_pack_shares_no_memory_with_the_trees() -> None:
    tree = DraftTree(TOKENS, PARENTS)
    batch = pack([tree])
    batch.tokens.fill_(0)
    batch.parents.fill_(0)
    assert tree == DraftTree(TOKENS, PARENTS)
