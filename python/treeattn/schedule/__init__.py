# SPDX-License-Identifier: Apache-2.0
"""Which tokens to draft, and in what shape of tree."""

from treeattn.schedule.eagle2 import eagle2
from treeattn.schedule.merge import merge_trees

__all__ = ["eagle2", "merge_trees"]
