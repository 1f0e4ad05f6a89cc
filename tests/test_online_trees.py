# SPDX-License-Identifier: Apache-2.0
"""Online over trees of every kind: drawn ones are cut by their shape, none is ever torn."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.learned import sibling_ranks
from support.online import Drafting, policy, step
from support.trees import random_parents
from treeattn.schedule import Online
from treeattn.tree import DraftTree


@pytest.mark.parametrize("draws", ["iid", "swor"])
def test_drawn_trees_are_cut_by_their_shape(draws: str) -> None:
    """The same nodes whatever was drawn; `draws` stays, and draft_rows name the drawn parents."""
    rng = random.Random(0)
    for seed in range(60):
        parents = random_parents(rng, 8)
        rows = [int(row) for row in np.maximum(parents, 0)]
        given_rows = None if seed % 2 else [row + 3 for row in rows]
        kept = []
        for other in range(3):
            online = Online(policy(((1, 1000, 10.0), (3, 1000, 11.0), (8, 1000, 15.0))))
            learner = DraftTree([0, 1, 2, 3], [-1, 0, 0, 1])
            step(online, [Drafting(0)], [learner])
            online.observe(Drafting(0), [[1, 3, 9], [2, 9], [9]][seed % 3])
            tokens = [100 + other * 10 + i if other else i for i in range(8)]
            if other == 2:
                tokens = [rng.randrange(3) for _ in range(8)]
            tree = DraftTree(tokens, parents, None, draws, given_rows)
            _, (part,) = step(online, [Drafting(0)], [tree])
            assert part.draws == draws
            assert part.scores is None
            assert part.draft_rows is not None
            kept.append((part.parents.tolist(), part.draft_rows.tolist()))
            if other < 2:
                nodes = part.tokens - (100 + other * 10 if other else 0)
                expected = tree.keep(np.isin(np.arange(8), nodes))
                assert part == expected
                for node in nodes[1:].tolist():
                    siblings = tree.children(parents[node])
                    assert set(siblings[: siblings.index(node)]) <= set(nodes.tolist())
        assert kept[0] == kept[1] == kept[2]


def test_a_scored_tree_is_pruned_by_value_and_says_so() -> None:
    scores = np.log([1.0, 0.9, 0.01])
    for draws, after in (("deterministic", "deterministic"), ("swor", "pruned")):
        online = Online(policy(((1, 1000, 10.0), (2, 1000, 10.5), (3, 1000, 15.0))))
        tree = DraftTree([0, 1, 2], [-1, 0, 0], scores, draws)
        _, (part,) = step(online, [Drafting(0)], [tree])
        assert part.tokens.tolist() == [0, 1]
        assert part.draws == after
        assert part.scores is not None


# Any trees, any costs.


def random_tree(rng: random.Random) -> DraftTree:
    """Tokens are node ids."""
    parents = random_parents(rng, rng.randint(1, 12))
    scores = [0.0]
    for parent in parents[1:]:
        scores.append(scores[parent] + rng.choice([0.0, -0.1, -0.7, -3.0, -math.inf]))
    kind = rng.choice(["deterministic", "scored", "iid", "swor"])
    known = scores if kind == "scored" else None
    return DraftTree(
        range(len(parents)), parents, known, "deterministic" if kind == "scored" else kind
    )


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), max_rows=st.none() | st.integers(1, 30), bounded=st.booleans())
def test_whatever_the_trees_and_the_costs(seed: int, max_rows: int | None, bounded: bool) -> None:
    """Kept trees are trees with their root, and expected to be no slower than plain decoding."""
    rng = random.Random(seed)
    sizes = sorted({*rng.sample(range(1, 40), 4), 48})
    verify = tuple((rows, 1000, rng.uniform(1, 1 + rows / 4)) for rows in sizes)
    bound = rng.uniform(0.5, 8.0) if bounded else None
    online = Online(
        policy(verify, draft_ms=rng.choice([0.0, 0.2, 2.0]), max_step_ms=bound), max_rows
    )
    requests = [
        Drafting(b, rng.randrange(2000), rng.randint(1, 20)) for b in range(rng.randint(1, 4))
    ]
    costs = online.policy.costs.costs
    draft_ms = online.policy.verdict(len(requests)).draft_ms
    for _ in range(4):
        drafts = [random_tree(rng) for _ in requests]
        asked, trees = step(online, requests, drafts)
        rows, off_ms = sum(map(len, trees)), costs.verify(len(requests), 1000)
        step_ms = costs.verify(rows, 1000)
        assert max_rows is None or rows <= max(max_rows, len(requests))
        assert bound is None or rows == len(requests) or step_ms + draft_ms <= bound
        tokens = 0.0
        for request, draft, ask, tree in zip(requests, drafts, asked, trees, strict=True):
            assert tree.tokens[0] == 0
            if not ask:
                assert len(tree) == 1
                tokens += 1.0
                continue
            nodes = tree.tokens.tolist()
            expected = draft.keep(np.isin(np.arange(len(draft)), nodes))  # raises for orphans
            assert (tree.parents == expected.parents).all()
            assert tree.draws == draft.draws
            assert int(tree.depths.max()) < request.room
            likely = online._known[request.seq].learned.calibrate(draft)
            assert likely.scores is not None
            tokens += float(np.exp(likely.scores[nodes]).sum())
            if draft.scores is None:
                assert sibling_ranks(tree).tolist() == sibling_ranks(draft)[nodes].tolist()
        spent_ms = draft_ms if any(asked) else 0.0  # by then, whatever is verified
        off_rate = len(requests) / (off_ms + spent_ms)
        assert tokens / (step_ms + spent_ms) >= off_rate * (1 - 1e-12)
        for request, draft, ask in zip(requests, drafts, asked, strict=True):
            path = draft.path(rng.randrange(len(draft))) if ask else [0]
            online.observe(request, [*path[1:], 99])
            assert math.isfinite(online._known[request.seq].saved_ms)
