# SPDX-License-Identifier: Apache-2.0
"""Draft trees: `DraftTree` for one request, `pack` for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
IntLike: TypeAlias = Sequence[int] | IntArray
FloatLike: TypeAlias = Sequence[float] | npt.NDArray[np.floating[Any]]
_Array = TypeVar("_Array", bound=npt.NDArray[Any])

DRAWS = ("deterministic", "iid", "swor", "mixed", "pruned")
_HAS_DRAFT_LAW = ("iid", "swor")  # the rules that read `draft_probs` take these draws only


@dataclass(frozen=True, init=False, eq=False)
class DraftTree:
    """The draft tree of one request: validated on construction, arrays read-only.

    tokens: [N] int64, token of each node; node 0 is the root, the last token already emitted.
        Ids outside the vocabulary are padding: legal, never accepted.
    parents: [N] int32, `parents[0] == -1`, `0 <= parents[i] < i` for the others.
    scores: [N] float64 or None, log probability of the path root..i under the drafter.
    draws: how siblings were chosen: "deterministic", "iid", "swor" (without replacement, in
        order), "mixed" (merged trees of different kinds) or "pruned".
    draft_rows: [N] int32 or None, the row of `draft_probs` that each node was drawn from (the
        root's is unused); None means the row of its parent.
    depths: [N] int32, edges below the root.

    Siblings with one token are legal; a tree without nodes is an inactive request.
    Raises ValueError naming the argument, the rule, the index and the value.
    """

    tokens: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float64] | None = None
    draws: str = "deterministic"
    draft_rows: npt.NDArray[np.int32] | None = None
    depths: npt.NDArray[np.int32] = field(init=False, repr=False)

    def __init__(
        self,
        tokens: IntLike,
        parents: IntLike,
        scores: FloatLike | None = None,
        draws: str = "deterministic",
        draft_rows: IntLike | None = None,
    ) -> None:
        token_array = _integers("tokens", tokens)
        parent_array = _integers("parents", parents)
        _same_length("parents", parent_array, token_array)
        _check_parents(parent_array)
        if draws not in DRAWS:
            raise ValueError(f"draws must be one of {', '.join(DRAWS)}, got {draws!r}")
        self._assign(
            token_array,
            parent_array.astype(np.int32),
            None if scores is None else _scores(scores, token_array),
            draws,
            None if draft_rows is None else _draft_rows(draft_rows, token_array),
            _depths(parent_array),
        )

    def _assign(
        self,
        tokens: npt.NDArray[np.int64],
        parents: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float64] | None,
        draws: str,
        draft_rows: npt.NDArray[np.int32] | None,
        depths: npt.NDArray[np.int32],
    ) -> None:
        """Takes the arrays, which belong to nobody else and are known to be right."""
        assign = object.__setattr__
        assign(self, "tokens", _frozen(tokens))
        assign(self, "parents", _frozen(parents))
        assign(self, "scores", None if scores is None else _frozen(scores))
        assign(self, "draws", draws)
        assign(self, "draft_rows", None if draft_rows is None else _frozen(draft_rows))
        assign(self, "depths", _frozen(depths))

    @classmethod
    def chain(cls, tokens: IntLike) -> DraftTree:
        """Every node the only child of the one before; `tokens[0]` is the root."""
        count = len(tokens)
        if count == 0:
            raise ValueError("tokens must hold the root at least, got an empty sequence")
        return cls(tokens, np.arange(-1, count - 1))

    @classmethod
    def from_paths(cls, root: int, paths: Sequence[Sequence[int]]) -> DraftTree:
        """The trie of `paths` (tokens below the root), children in order of first appearance."""
        tokens, parents = [root], [-1]
        node_of: dict[tuple[int, int], int] = {}
        for path in paths:
            node = 0
            for token in path:
                edge = (node, int(token))
                if edge not in node_of:
                    node_of[edge] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = node_of[edge]
        return cls(tokens, parents)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DraftTree):
            return NotImplemented
        return (
            self.draws == other.draws
            and np.array_equal(self.tokens, other.tokens)
            and np.array_equal(self.parents, other.parents)
            and _optional_equal(self.scores, other.scores)
            and _optional_equal(self.draft_rows, other.draft_rows)
        )

    __hash__ = None  # type: ignore[assignment]

    def children(self, i: int) -> list[int]:
        """Node ids of the children of node `i`, ascending: the order in which they are tried."""
        self._check_node(i)
        ids: list[int] = np.flatnonzero(self.parents == i).tolist()
        return ids

    def path(self, i: int) -> list[int]:
        """Node ids from the root to node `i`, both included."""
        self._check_node(i)
        ids = [i]
        while ids[-1] != 0:
            ids.append(int(self.parents[ids[-1]]))
        return ids[::-1]

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """Node ids from the root along `tokens`, as far as the tree holds them.

        tokens: what comes after the root. Of siblings with one token the first is taken. Nothing
        for a tree without nodes.
        """
        if len(self) == 0:
            return []
        path = [0]
        for token in tokens:
            following = [i for i in self.children(path[-1]) if self.tokens[i] == token]
            if not following:
                break
            path.append(following[0])
        return path

    def keep(self, mask: Sequence[bool] | npt.NDArray[np.bool_]) -> DraftTree:
        """The tree of the nodes whose `mask` [N] bool is set, in the same order.

        `draws` stays: with "iid" and "swor" the mask must not depend on the sampled tokens, else
        the acceptance rule is biased (`schedule.prune` marks its result "pruned" for that reason).
        Raises ValueError when the root is dropped, or a node is kept whose parent is dropped.
        """
        kept = np.asarray(mask)
        if kept.shape != self.tokens.shape or (kept.dtype != np.bool_ and kept.size > 0):
            raise ValueError(
                f"mask must be [{len(self)}] bool, one entry per node, "
                f"got shape {list(kept.shape)}, dtype {kept.dtype}"
            )
        if len(self) == 0:
            return self
        if not kept[0]:
            raise ValueError("mask must keep the root, got mask[0] = False")
        orphans = np.flatnonzero(kept[1:] & ~kept[self.parents[1:]]) + 1
        if len(orphans) > 0:
            i = int(orphans[0])
            raise ValueError(
                f"mask must keep the parent of every kept node: mask[{i}] = True, "
                f"but its parent is node {self.parents[i]} and mask[{self.parents[i]}] = False"
            )
        return self._reordered(np.flatnonzero(kept))

    def dfs(self) -> DraftTree:
        """The same tree in depth-first order.

        With `scores` and "deterministic" draws the likeliest child comes first (ties: the smaller
        index). Otherwise siblings keep their order: for sampled ones it is the order in which they
        were drawn, and reordering them by value would bias the rejection rules.
        """
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            children[parent].append(node)
        if self.scores is not None and self.draws == "deterministic":
            scores = self.scores.tolist()
            for siblings in children:
                siblings.sort(key=lambda node: -scores[node])
        order: list[int] = []
        stack = [0] if len(self) > 0 else []
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(children[node]))
        return self._reordered(np.array(order, dtype=np.int64))

    def _reordered(self, order: npt.NDArray[np.int64]) -> DraftTree:
        """The nodes `order` (ancestor-closed, parents first) as a new tree.

        A sampled tree keeps naming the rows of the original `draft_probs`.
        """
        new_id = np.full(len(self), -1, dtype=np.int32)
        new_id[order] = np.arange(len(order), dtype=np.int32)
        parents = self.parents[order]
        parents[1:] = new_id[parents[1:]]
        rows = self.draft_rows
        if rows is None and self.draws in _HAS_DRAFT_LAW:
            rows = self.parents
        tree = object.__new__(DraftTree)
        tree._assign(
            self.tokens[order],
            parents,
            None if self.scores is None else self.scores[order],
            self.draws,
            None if rows is None else rows[order],
            self.depths[order],
        )
        return tree

    def _check_node(self, i: int) -> None:
        if not 0 <= i < len(self):
            raise ValueError(f"i must be a node id in [0, {len(self)}), got {i}")


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """The trees of a batch, concatenated; what `plan_tree` and `accept_path` take.

    tokens: [N] int64; parents: [N] int32, indices within the request; node_indptr: [B + 1] int32,
    request b owns nodes `node_indptr[b] .. node_indptr[b + 1]`; max_depth: depth of the deepest
    tree; trees: the B trees, None for an inactive row.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    node_indptr: torch.Tensor
    max_depth: int
    trees: tuple[DraftTree | None, ...]

    @property
    def draws(self) -> list[str | None]:
        """How each request's siblings were chosen; None for an inactive row."""
        return [None if tree is None else tree.draws for tree in self.trees]


def pack(
    trees: Sequence[DraftTree | None], *, device: torch.device | str | None = None
) -> TreeBatch:
    """Concatenate the trees of a batch, on `device`; None is an inactive row without nodes."""
    active = [tree for tree in trees if tree is not None and len(tree) > 0]
    tokens = np.concatenate([tree.tokens for tree in active] or [np.empty(0, np.int64)])
    parents = np.concatenate([tree.parents for tree in active] or [np.empty(0, np.int32)])
    sizes = (0 if tree is None else len(tree) for tree in trees)
    node_indptr = np.array(list(accumulate(sizes, initial=0)), dtype=np.int32)
    return TreeBatch(
        tokens=torch.from_numpy(tokens).to(device),
        parents=torch.from_numpy(parents).to(device),
        node_indptr=torch.from_numpy(node_indptr).to(device),
        max_depth=max((int(tree.depths.max()) for tree in active), default=0),
        trees=tuple(trees),
    )


def _integers(name: str, values: IntLike) -> npt.NDArray[np.int64]:
    """A private copy, so that freezing it never freezes the caller's array."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be a 1-D sequence of integers: {error}") from None
    if array.ndim != 1 or not (array.size == 0 or np.can_cast(array.dtype, np.int64, "safe")):
        raise ValueError(
            f"{name} must be a 1-D sequence of integers, "
            f"got shape {list(array.shape)}, dtype {array.dtype}"
        )
    if array.dtype == np.bool_:
        raise ValueError(f"{name} must be a 1-D sequence of integers, got dtype bool")
    return array.astype(np.int64)


def _same_length(name: str, array: npt.NDArray[Any], tokens: npt.NDArray[np.int64]) -> None:
    if array.shape != tokens.shape:
        raise ValueError(
            f"{name} must have one entry per token: expected shape {list(tokens.shape)}, "
            f"got {list(array.shape)}"
        )


def _check_parents(parents: npt.NDArray[np.int64]) -> None:
    if len(parents) == 0:
        return
    if parents[0] != -1:
        raise ValueError(f"parents[0] must be -1, node 0 is the root; got {parents[0]}")
    wrong = np.flatnonzero((parents < 0) | (parents >= np.arange(len(parents))))
    if len(wrong) == 1:  # only the root itself
        return
    i = int(wrong[1])
    if parents[i] == -1:
        raise ValueError(f"parents[{i}] = -1 makes node {i} a second root; only node 0 is a root")
    raise ValueError(
        f"parents[{i}] must be in [0, {i}), parents come before their children; got {parents[i]}"
    )


def _depths(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    depths = [0] * len(parents)
    for node, parent in enumerate(parents.tolist()[1:], start=1):
        depths[node] = depths[parent] + 1
    return np.array(depths, dtype=np.int32)


def _scores(scores: FloatLike, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    array = np.array(scores, dtype=np.float64)
    _same_length("scores", array, tokens)
    missing = np.flatnonzero(np.isnan(array))
    if len(missing) > 0:
        raise ValueError(f"scores must be log probabilities, got scores[{missing[0]}] = nan")
    return array


def _draft_rows(rows: IntLike, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    array = _integers("draft_rows", rows)
    _same_length("draft_rows", array, tokens)
    limit = np.iinfo(np.int32).max
    wrong = np.flatnonzero((array[1:] < 0) | (array[1:] > limit)) + 1
    if len(wrong) > 0:
        i = int(wrong[0])
        raise ValueError(f"draft_rows[{i}] must be a row of draft_probs, got {array[i]}")
    return array.clip(-1, limit).astype(np.int32)


def _frozen(array: _Array) -> _Array:
    array.setflags(write=False)
    return array


def _optional_equal(a: npt.NDArray[Any] | None, b: npt.NDArray[Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a, b)
