# SPDX-License-Identifier: Apache-2.0
"""The size of tree that emits most tokens per second."""

from __future__ import annotations

import math
from collections.abc import Mapping

from treeattn.cost import Staircase


def choose(
    values: Mapping[int, float],
    verify_ms: Mapping[int, float],
    *,
    draft_ms_per_level: float,
    depths: Mapping[int, int],
    max_nodes: int | None = None,
) -> int:
    """How many nodes to draft and verify, the root counted, for most tokens per second; 1 is off.

    values: {nodes: expected tokens of a step}, the root's included; off emits values[1], or 1.
    verify_ms: {nodes: measured ms}, the whole batch's. A size that was not measured costs what the
        next larger one does; above the largest none is chosen (`cost.Staircase`).
    draft_ms_per_level, depths: drafting takes depths[nodes] levels of so many ms.
    max_nodes: what fits; no larger size is chosen.

    Ties go to the smaller size. Bad measurements never raise: a time that is NaN, infinite or <= 0
    counts as not measured, a value that is NaN or infinite is no candidate, and without a draft
    time (NaN, infinite, < 0) or any verify time the answer is off.
    Raises ValueError for a size < 1, max_nodes < 1, or a candidate without depth >= 0.
    """
    if max_nodes is not None and max_nodes < 1:
        raise ValueError(f"max_nodes must be >= 1, got {max_nodes}")
    verify = Staircase(verify_ms)
    off_tokens = values.get(1, 1.0)
    best, best_rate = 1, (off_tokens if math.isfinite(off_tokens) else 1.0) / verify(1)
    for nodes in sorted(values):
        if nodes < 1:
            raise ValueError(f"values must be of sizes >= 1, got {nodes}")
        if nodes == 1 or (max_nodes is not None and nodes > max_nodes):
            continue
        if not depths.get(nodes, -1) >= 0:
            raise ValueError(f"depths[{nodes}] must be >= 0, got {depths.get(nodes)}")
        ms = verify(nodes) + draft_ms_per_level * depths[nodes]
        known = math.isfinite(values[nodes]) and 0.0 <= draft_ms_per_level < math.inf
        if known and values[nodes] / ms > best_rate:
            best, best_rate = nodes, values[nodes] / ms
    return best
