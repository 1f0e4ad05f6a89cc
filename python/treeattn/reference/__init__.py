# SPDX-License-Identifier: Apache-2.0
"""The oracle: every op in plain PyTorch or Python, sharing no code with the kernels."""

from treeattn.reference.plan_tree import plan_tree
from treeattn.reference.tree_attention import merge_states, tree_attention, write_kv

__all__ = ["merge_states", "plan_tree", "tree_attention", "write_kv"]
