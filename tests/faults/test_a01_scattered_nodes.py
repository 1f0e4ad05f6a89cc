# SPDX-License-Identifier: Apache-2.0
"""A01: accepted nodes are scattered over the tree; everything after must see them in order."""

from __future__ import annotations

import torch
from support.tiny import Scripted, logical_kv, plain, start, tiny_decoder
from treeattn.tree import DraftTree

PROMPT = [7, 3, 11, 5, 2, 9]  # five committed tokens and the root
PARENTS = [-1, 0, 0, 1, 1, 2, 2]


def test_commit_packs_the_accepted_path() -> None:
    decoder = tiny_decoder()
    truth = plain(decoder, PROMPT, 12)
    wrong = (truth[0] + 1) % 64, (truth[1] + 1) % 64
    tree = DraftTree([9, wrong[0], truth[0], truth[1], 1, wrong[1], truth[1]], PARENTS)
    drafter = Scripted(lambda request: tree if len(request.tokens) == len(PROMPT) else None)
    engine = start(decoder, PROMPT, drafter)
    engine.step()

    (request,) = engine.running
    assert request.output == truth[:3]
    assert engine.cache.pool.context_len(request.seq) == 8
    kept = logical_kv(engine.cache, request.seq, 8)

    reference = start(decoder, PROMPT, Scripted(lambda request: None))
    while len(reference.running[0].output if reference.running else []) < 3:
        reference.step()
    torch.testing.assert_close(kept, logical_kv(reference.cache, 0, 8), rtol=0, atol=1e-5)

    committed = torch.tensor(engine.cache.pool.block_table(request.seq))
    for pool in (engine.cache.k, engine.cache.v):
        spare = torch.ones(pool.shape[1], dtype=torch.bool)
        spare[committed] = False
        pool[:, spare] = torch.nan
    while len(request.output) < 12:
        engine.step()
    assert request.output[:12] == truth
