# SPDX-License-Identifier: Apache-2.0
"""Suffix trie: all continuations of what the sequence ends with, as one tree."""

from __future__ import annotations

from collections.abc import Sequence

from treeattn._host import SuffixTrie
from treeattn.decoder.linear import MIN_ROWS
from treeattn.decoder.request import Request
from treeattn.schedule.prune import likeliest_chain
from treeattn.tree import DraftTree


class SuffixDraft:
    """The likeliest continuations by how often they followed the longest matching suffix.

    min_match: shortest suffix, in tokens, worth rows of a verify step. min_prob: least path
    probability worth a row. A single matching token is enough for a draft that fits in the rows
    which a step takes anyway.
    """

    def __init__(self, min_match: int = 2, min_prob: float = 0.1) -> None:
        self._trie = SuffixTrie()
        self._min_match = min_match
        self._min_prob = min_prob

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        free_nodes = min(num_nodes, MIN_ROWS // max(1, len(requests)))
        trees = [self._tree(request, num_nodes, free_nodes) for request in requests]
        if shape == "chain":
            return [None if tree is None else likeliest_chain(tree) for tree in trees]
        return trees

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        self._trie.extend(request.seq, list(tokens))

    def release(self, request: Request) -> None:
        self._trie.forget(request.seq)

    def _tree(self, request: Request, num_nodes: int, free_nodes: int) -> DraftTree | None:
        draft = self._trie.propose(
            request.seq, num_nodes, min_match=self._min_match, min_prob=self._min_prob
        )
        if len(draft[0]) < free_nodes:
            draft = self._trie.propose(request.seq, free_nodes)
        tokens, parents, log_probs = draft
        return DraftTree(tokens, parents, scores=log_probs) if len(tokens) > 1 else None
