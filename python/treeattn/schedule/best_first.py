# SPDX-License-Identifier: Apache-2.0
"""The likeliest paths when all levels' laws are known at once (DDTree, 2604.12989)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeattn import _host
from treeattn.tree import DraftTree

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]


def best_first_tree(
    log_probs: Tensor | FloatArray, num_nodes: int, *, root_token: int = -1
) -> DraftTree:
    """The `num_nodes` likeliest nodes below the root when every level has its own law.

    A path's probability is the product over its levels, and no child is likelier than its parent,
    so the best nodes are a tree, and the one with the most expected tokens (OPT-Tree, 2406.17276;
    DDTree, 2604.12989). Ties go to the smaller token among siblings, else to what was found first.

    log_probs: [levels, V] of any float dtype, on any device; row d is the law of the token at
        depth d + 1, whatever lies above it. Tokens of -inf are never drafted; above 0 counts as 0.
    num_nodes counts the root. The tree has fewer when there are fewer.
    root_token: by default -1, for the caller to fill in.

    Returns the tree in depth-first order, likeliest child first, with scores.
    Raises ValueError for num_nodes < 1, a NaN, or log_probs of another shape or dtype.
    """
    laws = torch.as_tensor(log_probs)
    if laws.dim() != 2 or not laws.is_floating_point():
        raise ValueError(
            f"log_probs must be [levels, V] of a float dtype, got {list(laws.shape)}, {laws.dtype}"
        )
    dtype = torch.promote_types(laws.dtype, torch.float32)
    values = laws.detach().to("cpu", dtype).contiguous().numpy()
    tokens, parents, scores = _host.best_first(values, num_nodes, root_token)
    return DraftTree(tokens, parents, scores)
