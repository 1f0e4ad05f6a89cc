# SPDX-License-Identifier: Apache-2.0
"""Accepted paths made by hand."""

from __future__ import annotations

import torch
from treeattn.ops import AcceptedPath


def accepted_path(
    paths: list[list[int] | None], width: int, status: list[int] | None = None
) -> AcceptedPath:
    """Node ids per request, root first; None accepts nothing, not even the root."""
    rows = [[*(path or []), *([-1] * width)][:width] for path in paths]
    default = [0 if path else 3 for path in paths]
    num_requests = len(paths)
    return AcceptedPath(
        path=torch.tensor(rows, dtype=torch.int32).reshape(num_requests, width),
        num_accepted=torch.tensor([max(0, len(path or []) - 1) for path in paths]).int(),
        next_tokens=torch.zeros(num_requests, dtype=torch.int64),
        status=torch.tensor(status or default, dtype=torch.int32),
        emitted=torch.zeros(num_requests, width, dtype=torch.int64),
    )
