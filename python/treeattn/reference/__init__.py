# SPDX-License-Identifier: Apache-2.0
"""The oracle: every op in plain PyTorch or Python, sharing no code with the kernels."""

from treeattn.reference.plan_tree import plan_tree

__all__ = ["plan_tree"]
