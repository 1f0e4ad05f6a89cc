# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup: repeat what followed the same tokens before."""

from __future__ import annotations

from collections.abc import Sequence

from treeattn.decoder.request import Request
from treeattn.tree import DraftTree


class PromptLookup:
    """A chain that continues the latest earlier occurrence of the longest matching n-gram.

    min_match, max_match: shortest and longest n-gram looked up, in tokens.
    """

    def __init__(self, min_match: int = 2, max_match: int = 6) -> None:
        self._sizes = range(max_match, min_match - 1, -1)
        self._ends: dict[int, dict[tuple[int, ...], int]] = {}  # per request: n-gram -> its end

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return [self._chain(request, num_nodes) for request in requests]

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        """Index n-grams that end before the last token: the last one has no continuation yet."""
        ends = self._ends.setdefault(request.seq, {})
        num_known = len(request.tokens) - len(tokens)
        for end in range(max(num_known, 1), len(request.tokens)):
            for size in self._sizes:
                if size <= end:
                    ends[tuple(request.tokens[end - size : end])] = end

    def release(self, request: Request) -> None:
        self._ends.pop(request.seq, None)

    def _chain(self, request: Request, num_nodes: int) -> DraftTree | None:
        tokens, ends = request.tokens, self._ends[request.seq]
        for size in self._sizes:
            end = ends.get(tuple(tokens[-size:]))
            if end is not None:
                return DraftTree.chain([tokens[-1], *tokens[end : end + num_nodes - 1]])
        return None
