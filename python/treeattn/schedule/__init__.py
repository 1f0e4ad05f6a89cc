# SPDX-License-Identifier: Apache-2.0
"""Which tokens to draft, and in what shape of tree."""

from treeattn.schedule.merge import merge_trees

__all__ = ["merge_trees"]
