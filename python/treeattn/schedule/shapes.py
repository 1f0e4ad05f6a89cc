# SPDX-License-Identifier: Apache-2.0
"""Trees whose shape is fixed ahead: Sequoia's best one for given acceptance, Medusa's choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treeattn import _host

Parents: TypeAlias = npt.NDArray[np.int32]


def sequoia_tree(p: Sequence[float], num_nodes: int, max_depth: int) -> tuple[Parents, float]:
    """The shape with the most expected tokens (Sequoia, 2402.12374), and how many those are.

    Exact, by dynamic programming over sizes, levels and siblings: num_nodes^2 * levels * len(p) / 2
    steps, where levels ends when another one would change nothing.

    p: p[i] is the chance that sibling i is the accepted one, in the order in which they are tried;
        siblings beyond are never accepted. In any order, though measured ones fall.
    num_nodes counts the root; the shape has fewer nodes when more would add nothing.
    max_depth counts edges below the root.

    Returns parents [n] int32 in depth-first order, siblings by rank, and the expected tokens of a
    step: 1 for the root's, plus the expected number of accepted nodes.
    Raises ValueError for p outside [0, 1], num_nodes < 1 or max_depth < 0.
    """
    return _host.sequoia_tree([float(chance) for chance in p], num_nodes, max_depth)


def static_tree(choices: Sequence[Sequence[int]]) -> tuple[Parents, npt.NDArray[np.int32]]:
    """The shape that Medusa's choices (2401.10774) describe, and which candidate each node takes.

    choices: one list per node below the root: at each level from the root to the node, the rank
        of the token among that level's candidates, the likeliest being 0. In any order.

    Returns parents [n] int32 in depth-first order, the lower rank first, and ranks [n] int32: node
    i holds the candidate of that rank at its depth; 0 for the root.
    Raises ValueError for a negative rank, a list that is empty or given twice, or one whose parent
    (the list without its last entry) is not among the choices.
    """
    paths = sorted(tuple(int(rank) for rank in choice) for choice in choices)
    node_of: dict[tuple[int, ...], int] = {(): 0}
    parents = [-1]
    for path in paths:
        if path in node_of:
            rule = "be given once" if path else "name at least one rank"
            raise ValueError(f"choices must {rule} each, got {list(path)}")
        if min(path) < 0:
            raise ValueError(f"choices must hold ranks >= 0, got {list(path)}")
        if path[:-1] not in node_of:
            raise ValueError(f"choices hold {list(path)}, but not its parent {list(path[:-1])}")
        node_of[path] = len(parents)
        parents.append(node_of[path[:-1]])
    ranks = [0, *(path[-1] for path in paths)]
    return np.array(parents, dtype=np.int32), np.array(ranks, dtype=np.int32)
