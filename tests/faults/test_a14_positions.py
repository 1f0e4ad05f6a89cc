# SPDX-License-Identifier: Apache-2.0
"""A14: a node's position is context_len + depth, whichever branch it lies on."""

from __future__ import annotations

import pytest
import torch
from support.tiny import Scripted, plain, start, tiny_decoder
from treeattn.decoder.drafters.expansion import grow_trees
from treeattn.decoder.model import Model
from treeattn.decoder.request import Request
from treeattn.plan import TreePlan
from treeattn.tree import DraftTree

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 7]  # ten committed tokens and the root


def test_positions_of_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    truth = plain(decoder, PROMPT, 3)
    others = [(token + 1) % 64 for token in truth]
    tokens = [7, others[0], truth[0], others[1], truth[1], others[1]]
    tree = DraftTree(tokens, [-1, 0, 0, 1, 2, 2])
    engine = start(decoder, PROMPT, Scripted(lambda request: tree if not request.output else None))

    plans: list[TreePlan] = []
    forward = Model.forward

    def spy(model: Model, tokens: torch.Tensor, plan: TreePlan, *args: object, **kw: object):  # type: ignore[no-untyped-def]
        plans.append(plan)
        return forward(model, tokens, plan, *args, **kw)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "forward", spy)
    engine.step()
    assert plans[-1].positions.tolist() == [10, 11, 11, 12, 12, 12]
    assert engine.running[0].output == truth
    engine.step()
    assert plans[-1].positions.tolist() == [13]


def test_dynamic_tree_follows_the_chosen_parents() -> None:
    """Below the root only 1 and 2 are likely, then 2's children beat 1's best but one."""
    after = {0: {1: 0.6, 2: 0.3, 3: 0.06, 4: 0.04}, 1: {5: 0.3, 6: 0.01}, 2: {7: 0.9, 8: 0.05}}

    def log_probs(requests: list[Request], trees: list[DraftTree]) -> list[torch.Tensor]:
        law = torch.full((len(trees[0]), 16), 1e-6)
        for node, token in enumerate(trees[0].tokens.tolist()):
            for child, prob in after.get(token, {}).items():
                law[node, child] = prob
        return [law.log()]

    root = Request(seq=0, tokens=[0], limit=100)
    (tree,) = grow_trees([root], 9, "tree", log_probs)
    assert tree.tokens.tolist()[:7] == [0, 1, 2, 3, 4, 7, 5]
    assert tree.parents.tolist()[:7] == [-1, 0, 0, 0, 0, 2, 1]
    assert tree.depths.tolist()[5:7] == [2, 2]
