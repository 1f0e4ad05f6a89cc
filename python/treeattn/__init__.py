# SPDX-License-Identifier: Apache-2.0
"""Tree-structured speculative decoding for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from treeattn.doctor import doctor
from treeattn.ops import (
    AcceptedPath,
    accept_path,
    merge_states,
    remap_kv,
    tree_attention,
    write_kv,
)
from treeattn.plan import TreePlan, plan_tree
from treeattn.tree import DraftTree, TreeBatch, pack

if TYPE_CHECKING:
    from treeattn import cost, reference, schedule
    from treeattn.decoder import Decoder
    from treeattn.kv_cache import BlockPool, OutOfBlocks

__all__ = [
    "AcceptedPath",
    "BlockPool",
    "Decoder",
    "DraftTree",
    "OutOfBlocks",
    "TreeBatch",
    "TreePlan",
    "accept_path",
    "cost",
    "doctor",
    "merge_states",
    "pack",
    "plan_tree",
    "reference",
    "remap_kv",
    "schedule",
    "tree_attention",
    "write_kv",
]

# Imported on first use: they need the compiled host module, or take time to load.
_ON_DEMAND = {
    "BlockPool": "treeattn.kv_cache",
    "OutOfBlocks": "treeattn.kv_cache",
    "Decoder": "treeattn.decoder",
}
_MODULES = ("cost", "reference", "schedule")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"treeattn.{name}")
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module 'treeattn' has no attribute {name!r}")
