# SPDX-License-Identifier: Apache-2.0
"""A04: adding nodes to a tree never makes the accepted path shorter."""

from __future__ import annotations

import numpy as np
import torch
from support.tiny import Scripted, logical_kv, plain, random_tree, start, tiny_decoder
from treeattn.decoder import Decoder
from treeattn.tree import DraftTree

PROMPT = [4, 8, 15, 16, 23]


def first_step(decoder: Decoder, tree: DraftTree) -> tuple[list[int], torch.Tensor]:
    """What one step with `tree` emits, and the committed KV after it."""
    engine = start(decoder, PROMPT, Scripted(lambda request: tree))
    engine.step()
    (request,) = engine.running
    return request.output, logical_kv(engine.cache, 0, engine.cache.pool.context_len(0))


def test_a_sibling_changes_nothing() -> None:
    decoder = tiny_decoder()
    a, b, c = plain(decoder, PROMPT, 3)
    x = (a + 1) % 64
    chain_tokens, chain_kv = first_step(decoder, DraftTree([23, a, b], [-1, 0, 1]))
    tree_tokens, tree_kv = first_step(decoder, DraftTree([23, a, x, b], [-1, 0, 0, 1]))
    assert chain_tokens == tree_tokens == [a, b, c]
    torch.testing.assert_close(chain_kv, tree_kv, rtol=0, atol=1e-5)


def test_more_nodes_never_accept_less() -> None:
    decoder = tiny_decoder()
    truth = plain(decoder, PROMPT, 12)
    rng = np.random.default_rng(0)
    longer = 0
    for _ in range(100):
        large = random_tree(rng, 23, truth, 12, 64)
        small = DraftTree(large.tokens[:6], large.parents[:6])
        few, many = (first_step(decoder, tree)[0] for tree in (small, large))
        assert many[: len(few)] == few
        assert many == truth[: len(many)]
        longer += len(many) > len(few)
    assert longer > 10  # the extra nodes did get accepted
