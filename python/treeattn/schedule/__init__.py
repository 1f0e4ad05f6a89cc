# SPDX-License-Identifier: Apache-2.0
"""Which tokens to draft, and in what shape of tree."""

from treeattn.schedule.best_first import best_first_tree
from treeattn.schedule.merge import merge_trees
from treeattn.schedule.prune import prune
from treeattn.schedule.shapes import sequoia_tree, static_tree
from treeattn.schedule.specinfer import specinfer

__all__ = [
    "best_first_tree",
    "merge_trees",
    "prune",
    "sequoia_tree",
    "specinfer",
    "static_tree",
]
