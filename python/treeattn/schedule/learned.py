# SPDX-License-Identifier: Apache-2.0
"""What a drafter's word is worth: learned by depth and sibling rank, exponentially forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeattn import _host
from treeattn.cost import FloatArray
from treeattn.tree import DraftTree, IntLike

DEPTHS, RANKS = 8, 4  # deeper nodes and later siblings count as the last ones
HALF_LIFE = 8.0  # steps
PRIOR_TRUST = 0.8  # before anything was learned
PRIOR_WEIGHT = 5.0  # children


class LearnedAcceptance:
    """How often children were accepted, against how often the drafter said they would be.

    For each node on an accepted path, its children were tried: `said` sums the probability that the
    drafter gave each of them below its parent, `seen` counts those that were accepted; both are
    [DEPTHS, RANKS], by the parent's depth and the child's rank. `seen / said` corrects what the
    drafter says of the next trees. Of a draft without scores each child is taken to be certain: so
    there it is the chance by depth and rank itself, and does not depend on the tokens drawn.

    `tries` [DEPTHS] counts the nodes whose children were tried: `chance` is how often one of them
    was accepted, which is known before the drafter has said who they are. A prior without `tries`
    is taken to have given every node children of probability 1 in all.

    Each `observe` halves what is older than `half_life` steps; what is forgotten gives way to the
    prior: what earlier requests taught (`said`, `seen`), as though it were `weight` children.
    """

    def __init__(
        self,
        said: Sequence[Sequence[float]] | FloatArray | None = None,
        seen: Sequence[Sequence[float]] | FloatArray | None = None,
        tries: Sequence[float] | FloatArray | None = None,
        *,
        weight: float = PRIOR_WEIGHT,
        half_life: float = HALF_LIFE,
    ) -> None:
        if not (weight > 0 and half_life > 0):
            raise ValueError(
                f"weight and half_life must be > 0, got weight={weight}, half_life={half_life}"
            )
        trust = np.full((DEPTHS, RANKS), PRIOR_TRUST)
        chance = np.full(DEPTHS, PRIOR_TRUST)
        if said is not None and seen is not None:
            # A cell that was seldom tried says little: the general trust is worth some trials.
            told, found = _counts("said", said), _counts("seen", seen)
            trials = told.sum(1) if tries is None else _counts("tries", tries)
            trust = (found + trust * weight) / (told + weight)
            chance = (found.sum(1) + chance * weight) / (trials + weight)
        elif said is not None or seen is not None or tries is not None:
            raise ValueError("said and seen go together, and tries with them")
        self._prior = weight
        self._trust = trust
        self._chance = np.minimum(chance, 1.0)
        self._keep = 0.5 ** (1.0 / half_life)
        self.said = np.zeros((DEPTHS, RANKS))
        self.seen = np.zeros((DEPTHS, RANKS))
        self.tries = np.zeros(DEPTHS)

    def observe(self, tree: DraftTree, emitted: Sequence[int]) -> int:
        """`emitted` followed the root of `tree`; returns how many of them the tree holds.

        A child counts as accepted when its token was emitted after its parent's path, whether its
        row was verified or had been pruned away: a pruned draft teaches as much as a verified one.
        """
        self.said *= self._keep
        self.seen *= self._keep
        self.tries *= self._keep
        return _host.observe(
            tree.tokens,
            tree.parents,
            tree.depths,
            tree.scores,
            np.ascontiguousarray(emitted, dtype=np.int64),
            self.said,
            self.seen,
            self.tries,
        )

    @property
    def trust(self) -> FloatArray:
        """[DEPTHS, RANKS]: by what the drafter's word is multiplied."""
        trust: FloatArray = (self.seen + self._prior * self._trust) / (self.said + self._prior)
        return trust

    @property
    def chance(self) -> FloatArray:
        """[DEPTHS]: how likely it is that some child of an accepted node is accepted too."""
        chance: FloatArray = (self.seen.sum(1) + self._prior * self._chance) / (
            self.tries + self._prior
        )
        return chance

    def promise(self, tree: DraftTree, nodes: IntLike) -> FloatArray:
        """[len(nodes)]: tokens to expect right below each of `nodes`, whatever they will be."""
        below: FloatArray = self.chance[np.minimum(tree.depths[nodes], DEPTHS - 1)]
        return np.exp(self.log_chances(tree)[nodes]) * below

    def calibrate(self, tree: DraftTree) -> DraftTree:
        """`tree` with scores that are what was learned, for `prune` or `choose_batch`."""
        scores = self.log_chances(tree)
        return DraftTree(tree.tokens, tree.parents, scores, tree.draws, tree.draft_rows)

    def log_chances(self, tree: DraftTree) -> FloatArray:
        """[N]: what was learned in place of the scores: log chances that a path is accepted.

        Of a tree without scores the first of siblings is always the likeliest, so what is kept of
        them by value never depends on the tokens.
        """
        return _host.log_chances(tree.tokens, tree.parents, tree.depths, tree.scores, self.trust)


def _counts(name: str, values: object) -> FloatArray:
    """`values` if they are counts by depth (tries), or by depth and rank."""
    shape = (DEPTHS,) if name == "tries" else (DEPTHS, RANKS)
    try:
        counts = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):  # ragged, or no numbers
        counts = np.empty(0)
    if counts.shape != shape or not (np.isfinite(counts) & (counts >= 0)).all():
        raise ValueError(f"{name} must be {list(shape)} counts >= 0, got {values!r}")
    return counts
