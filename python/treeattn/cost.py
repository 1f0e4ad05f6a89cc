# SPDX-License-Identifier: Apache-2.0
"""What a step costs, from measured tables, and what it brings: expected tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treeattn.tree import IntLike

Size: TypeAlias = int | tuple[int, ...]
FloatArray: TypeAlias = npt.NDArray[np.float64]
_ABOVE_ALL = np.iinfo(np.int64).max


class Staircase:
    """Milliseconds measured at some sizes; a size in between costs what the next larger one does.

    points: {size: ms}, sizes being ints >= 1, or tuples of them of one length, in any order. The
        numbers stay as measured: no fit, and a dip remains a dip.
    What is no time, NaN, infinite or <= 0, counts as not measured.

    Of several dimensions the first goes up first: `table(rows, context)` takes the smallest
    measured rows that are enough and, among those, the smallest context that is enough; if no
    context measured there is, the next rows. Above all that was measured the cost is infinite.
    Raises ValueError for sizes that are not >= 1 or not of one length. No points are legal.
    """

    def __init__(self, points: Mapping[int, float] | Mapping[tuple[int, ...], float]) -> None:
        sizes = [size if isinstance(size, tuple) else (size,) for size in points]
        for size in sizes:
            if len(size) != len(sizes[0]) or len(size) == 0 or min(size) < 1:
                raise ValueError(f"points must have sizes >= 1 of one length, got {size}")
        measured = {
            size: ms for size, ms in zip(sizes, points.values(), strict=True) if is_time(ms)
        }
        columns = list(zip(*measured, strict=True)) or [()]
        self._axes = [np.unique(np.array(column, dtype=np.int64)) for column in columns]
        grid = np.full([len(axis) + 1 for axis in self._axes], np.inf)
        for size, ms in measured.items():
            grid[self._index(size)] = ms
        for dim in reversed(range(grid.ndim)):
            steps = np.moveaxis(grid, dim, 0)
            for i in reversed(range(len(steps) - 1)):
                steps[i] = np.where(np.isinf(steps[i]), steps[i + 1], steps[i])
        self._grid = grid

    @property
    def axes(self) -> Sequence[npt.NDArray[np.int64]]:
        """The sizes that were measured, ascending, of each dimension."""
        return self._axes

    def __call__(self, *size: int) -> float:
        return float(self._grid[self._index(size)])

    def along(self, *sizes: int | IntLike) -> FloatArray:
        """The costs at `sizes`, numbers or arrays, broadcast against each other."""
        costs = np.empty(np.broadcast_shapes(*(np.shape(size) for size in sizes)))
        costs[...] = self._grid[self._index(sizes)]  # a table without points has one cost for all
        return costs

    def _index(self, sizes: Sequence[int | IntLike]) -> tuple[npt.NDArray[np.intp], ...]:
        if len(sizes) != len(self._axes) and len(self._axes[0]) > 0:
            raise ValueError(f"size must have {len(self._axes)} numbers, got {len(sizes)}")
        pairs = zip(self._axes, sizes, strict=False)
        return tuple(np.searchsorted(axis, np.asarray(size)) for axis, size in pairs)


def is_time(ms: float) -> bool:
    """Whether a measurement is one: finite and above 0."""
    return 0.0 < ms < math.inf


@dataclass(frozen=True, eq=False)
class StepCosts:
    """Measured times of the parts of a step; None: takes no time (or has been spent already).

    verify: (rows, context), rows being the nodes of the whole batch, roots included.
    draft: (level, width), level counted from 1, width being the nodes of the whole batch whose laws
        the drafter is asked for. accept, remap: rows.
    """

    verify: Staircase
    draft: Staircase | None = None
    accept: Staircase | None = None
    remap: Staircase | None = None

    def after_draft(self, rows: IntLike, context: int) -> FloatArray:
        """Milliseconds for verify, accept and remap at each number of `rows`."""
        sizes, contexts, ms = self._after_draft
        costs: FloatArray = ms[np.searchsorted(contexts, context), np.searchsorted(sizes, rows)]
        return costs

    @cached_property
    def _after_draft(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]:
        """Rows and contexts at which the sum of the tables may change, and [contexts + 1, rows + 1]
        that sum: what lies above all of them costs what the last entry says."""
        tables = [table for table in (self.accept, self.remap) if table is not None]
        sizes = np.unique(np.concatenate([table.axes[0] for table in (self.verify, *tables)]))
        contexts = self.verify.axes[-1]
        rows = np.append(sizes, _ABOVE_ALL)
        total = self.verify.along(rows, np.append(contexts, _ABOVE_ALL)[:, None])
        for table in tables:
            total = total + table.along(rows)
        return sizes, contexts, total


def path_probs(parents: IntLike, acceptance: Sequence[Sequence[float]]) -> FloatArray:
    """The chance that each node is accepted: [N] float64, 1 for the root.

    parents: [N], parents[i] < i. acceptance: acceptance[d][r] is the chance that the child of rank
    r below an accepted node of depth d is the accepted one. Deeper nodes take the last row; ranks
    past a row's end are never accepted. Of one row it is what `schedule.sequoia_tree` takes.
    Raises ValueError for a chance outside [0, 1], or a parent that does not come before its child.
    """
    for depth, row in enumerate(acceptance):
        for rank, chance in enumerate(row):
            if not 0.0 <= chance <= 1.0:
                raise ValueError(f"acceptance[{depth}][{rank}] must be in [0, 1], got {chance}")
    rows = acceptance if len(acceptance) > 0 else [()]
    probs = np.ones(len(parents))
    depths = [0] * len(parents)
    num_children = [0] * len(parents)
    for node in range(1, len(parents)):
        parent = int(parents[node])
        if not 0 <= parent < node:
            raise ValueError(f"parents[{node}] must be in [0, {node}), got {parent}")
        row = rows[min(depths[parent], len(rows) - 1)]
        rank = num_children[parent]
        probs[node] = probs[parent] * row[rank] if rank < len(row) else 0.0
        num_children[parent] += 1
        depths[node] = depths[parent] + 1
    return probs


def expected_tokens(parents: IntLike, acceptance: Sequence[Sequence[float]]) -> float:
    """Tokens that a step with this tree emits on average: 1 plus the nodes that are accepted.

    Arguments and errors as for `path_probs`. A tree without nodes emits none.
    """
    return float(path_probs(parents, acceptance).sum())


def linear_cost(alpha: float, rho: float, num_draft: int) -> float:
    """RULE OF THUMB, a quick check only: time per token of a chain, plain decoding being 1.

    (1 + rho K) / (alpha K) with acceptance rate alpha, draft step / target step rho and K =
    num_draft. It counts alpha K tokens, which no chain reaches: it errs towards long chains.
    """
    tokens = alpha * num_draft
    return (1.0 + rho * num_draft) / tokens if tokens > 0 else math.inf


def chain_tokens(alpha: float, num_draft: int) -> float:
    """GEOMETRIC CHAIN: expected tokens of a step, (1 - alpha^(K+1)) / (1 - alpha), the bonus too.

    Right when every draft token is accepted with probability alpha, whatever came before it.
    """
    return float(sum(alpha**depth for depth in range(num_draft + 1)))


def chain_cost(alpha: float, rho: float, num_draft: int) -> float:
    """GEOMETRIC CHAIN: time per token, plain decoding being 1: (1 + rho K) / `chain_tokens`.

    Takes for granted that verifying K + 1 tokens costs what verifying one does.
    """
    return (1.0 + rho * num_draft) / chain_tokens(alpha, num_draft)


def tree_cost(tokens: float, step_ms: float, plain_ms: float) -> float:
    """MEASURED TREE: time per token, plain decoding being 1.

    tokens: `expected_tokens`. step_ms: draft + verify + accept + remap, from measured tables.
    plain_ms: a step of plain decoding at the same batch and context.
    """
    return step_ms / tokens / plain_ms
