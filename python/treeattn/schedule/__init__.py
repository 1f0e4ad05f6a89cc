# SPDX-License-Identifier: Apache-2.0
"""Which tokens to draft, and in what shape of tree."""

from treeattn.schedule.best_first import best_first_tree
from treeattn.schedule.budget import BatchPlan, choose_batch
from treeattn.schedule.choose import choose
from treeattn.schedule.eagle2 import eagle2
from treeattn.schedule.learned import LearnedAcceptance
from treeattn.schedule.merge import merge_trees
from treeattn.schedule.online import Fixed, Online, Schedule
from treeattn.schedule.policy import Policy, Verdict
from treeattn.schedule.prune import prune
from treeattn.schedule.shapes import sequoia_tree, static_tree
from treeattn.schedule.specinfer import specinfer

__all__ = [
    "BatchPlan",
    "Fixed",
    "LearnedAcceptance",
    "Online",
    "Policy",
    "Schedule",
    "Verdict",
    "best_first_tree",
    "choose",
    "choose_batch",
    "eagle2",
    "merge_trees",
    "prune",
    "sequoia_tree",
    "specinfer",
    "static_tree",
]
