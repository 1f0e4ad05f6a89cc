# SPDX-License-Identifier: Apache-2.0
"""Acceptance tables, by depth and sibling rank, and the drafts that they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treeattn.schedule.best_first import best_first_tree
from treeattn.schedule.recording import Recording, imagined
from treeattn.tree import DraftTree

RANKS = 8  # siblings of a table that is made from one number
_FORMAT = 'one object {"acceptance": [[chance of rank 0, of rank 1, ...], next depth, ...]}'


@dataclass(frozen=True)
class Acceptance:
    """rows[d][r]: the chance that of an accepted node of depth d the child of rank r is accepted.

    Deeper nodes take the last row. Each row sums to at most 1, and is kept with the likeliest
    first: that is what rank means. about: where the numbers come from; starts with "measured" or
    "assumed".
    Raises ValueError for no rows, a chance outside [0, 1], or a row that sums to more than 1.
    """

    rows: tuple[tuple[float, ...], ...]
    about: str = ""

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("acceptance must have a row per depth, got none")
        for depth, row in enumerate(self.rows):
            for rank, chance in enumerate(row):
                if not 0.0 <= chance <= 1.0:
                    raise ValueError(f"acceptance[{depth}][{rank}] must be in [0, 1], got {chance}")
            if sum(row) > 1.0 + 1e-9:
                raise ValueError(f"acceptance[{depth}] must sum to at most 1, got {sum(row)}")
        rows = tuple(tuple(sorted(row, reverse=True)) for row in self.rows)
        object.__setattr__(self, "rows", rows)

    @classmethod
    def geometric(cls, alpha: float, siblings: float = 0.0) -> Acceptance:
        """The likeliest child is accepted with chance `alpha` at every depth; each further sibling
        takes the share `siblings` of what the likelier ones have left. 0: chains only.
        """
        for name, value in (("alpha", alpha), ("siblings", siblings)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        row, left = [alpha], 1.0 - alpha
        while siblings > 0.0 and len(row) < RANKS:
            row.append(left * siblings)
            left -= row[-1]
        return cls((tuple(row),), f"assumed: alpha {alpha:g}, siblings {siblings:g}")

    @classmethod
    def load(cls, path: Path) -> Acceptance:
        """Raises ValueError naming the file and what is wrong with it."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or "acceptance" not in data:
                raise ValueError(f"it must hold {_FORMAT}")
            rows = tuple(tuple(float(chance) for chance in row) for row in data["acceptance"])
            return cls(rows, str(data.get("about", "")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"acceptance {path}: {error}") from error

    def tree(self, num_nodes: int, max_depth: int) -> DraftTree:
        """The shape with most expected tokens; tokens are ranks. Of one row, `sequoia_tree`'s."""
        width = max(map(len, self.rows))
        chances = np.zeros((max_depth, width))
        for depth in range(max_depth):
            row = self.rows[min(depth, len(self.rows) - 1)]
            chances[depth, : len(row)] = row
        with np.errstate(divide="ignore"):
            return best_first_tree(np.log(chances), num_nodes)

    def imagine(
        self,
        trees: Sequence[tuple[int, int]],
        *,
        longest_chain: int,
        num_requests: int,
        num_tokens: int,
        context: int,
        seed: int,
    ) -> list[Recording]:
        """Continuations whose drafts hold the best tree of each of `trees` (num_nodes, max_depth)
        and the likeliest chain, so that all of them can be compared on the same luck.
        """
        paths = {path for size in trees for path in _paths(self.tree(*size))}
        for depth in range(longest_chain):
            if max(self.rows[min(depth, len(self.rows) - 1)], default=0.0) == 0.0:
                break
            paths.add((0,) * (depth + 1))
        parents = DraftTree.from_paths(-1, sorted(paths)).parents.tolist()
        return [
            imagined(
                self.rows,
                parents,
                num_tokens=num_tokens,
                context=context,
                seed=seed * num_requests + request,
            )
            for request in range(num_requests)
        ]


def _paths(tree: DraftTree) -> Iterator[tuple[int, ...]]:
    """The ranks from the root to each node below it."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents.tolist()[1:], tree.tokens.tolist()[1:], strict=True):
        paths.append((*paths[parent], rank))
    yield from paths[1:]
