# SPDX-License-Identifier: Apache-2.0
"""The oracle: every op in plain PyTorch or Python, sharing no code with the kernels."""

from treeattn.reference.accept_path import accept_path
from treeattn.reference.plan_tree import plan_tree
from treeattn.reference.remap_kv import remap_kv
from treeattn.reference.tree_attention import merge_states, tree_attention, write_kv

__all__ = ["accept_path", "merge_states", "plan_tree", "remap_kv", "tree_attention", "write_kv"]
