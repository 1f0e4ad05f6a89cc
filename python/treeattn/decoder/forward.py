# SPDX-License-Identifier: Apache-2.0
"""Forward passes over the trees of a batch, and over prompts as chains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treeattn.decoder.cache import PagedCache
from treeattn.decoder.model import Model
from treeattn.tree import DraftTree, pack

PREFILL_CHUNK = 256


def prefill(model: Model, cache: PagedCache, seq: int, tokens: Sequence[int], start: int) -> Tensor:
    """Write the KV of one chunk of `tokens`, from index `start`; returns its hidden states.

    A chunk is a chain behind the `start` tokens before it. The sequence owns blocks for all of
    `tokens` already. The hidden states are [tokens of the chunk, hidden], after the last norm.
    """
    stop = min(start + PREFILL_CHUNK, len(tokens))
    batch = pack([DraftTree.chain(tokens[start:stop])], device=cache.k.device)
    plan = cache.plan(batch, [seq], [start])
    no_rows = batch.tokens.new_empty(0)
    _, hidden = model.forward(batch.tokens, plan, cache.k, cache.v, rows=no_rows)
    return hidden


def node_log_probs(
    model: Model,
    cache: PagedCache,
    trees: Sequence[DraftTree],
    seqs: Sequence[int],
    *,
    num_layers: int | None = None,
) -> list[Tensor]:
    """The model's next-token law at every node, [len(tree), V] fp32 log probs per request."""
    for seq, tree in zip(seqs, trees, strict=True):
        cache.reserve(seq, len(tree))
    batch = pack(trees, device=cache.k.device)
    plan = cache.plan(batch, seqs, [cache.pool.context_len(seq) for seq in seqs])
    logits, _ = model.forward(batch.tokens, plan, cache.k, cache.v, num_layers=num_layers)
    log_probs = torch.log_softmax(logits.float(), -1)
    return list(torch.split(log_probs, [len(tree) for tree in trees]))
