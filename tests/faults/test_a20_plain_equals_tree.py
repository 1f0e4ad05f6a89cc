# SPDX-License-Identifier: Apache-2.0
"""A20: greedy decoding with any tree gives the tokens of plain decoding, in fp32 exactly."""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny import Scripted, plain, random_tree, tiny_decoder
from treeattn.decoder import Request
from treeattn.tree import DraftTree

NUM_TOKENS = 64
PROMPTS = [[1], [5, 6, 7], list(range(40)), [63, 0] * 9, [11, 2, 33, 4, 55, 6, 17]]


def chain(rng: np.random.Generator, root: int, truth: list[int]) -> DraftTree:
    """The next tokens, with a wrong one somewhere."""
    tokens = truth[:6]
    if tokens:
        tokens[int(rng.integers(len(tokens)))] = int(rng.integers(64))
    return DraftTree.chain([root, *tokens])


def binary(rng: np.random.Generator, root: int, truth: list[int]) -> DraftTree:
    """A full binary tree of depth 3 with the true path at random places in it."""
    tokens, parents = [root], [-1]
    on_path = 0
    for level in range(min(3, len(truth))):
        first = len(tokens)
        frontier = range(2**level - 1, 2 ** (level + 1) - 1)
        side = int(rng.integers(2))
        for node in frontier:
            for child in range(2):
                right = node == on_path and child == side
                tokens.append(truth[level] if right else int(rng.integers(64)))
                parents.append(node)
        on_path = first + 2 * (on_path - frontier[0]) + side
    return DraftTree(tokens, parents)


def random(rng: np.random.Generator, root: int, truth: list[int]) -> DraftTree:
    return random_tree(rng, root, truth, int(rng.integers(1, 24)), 64)


@pytest.mark.parametrize("shape", [chain, binary, random], ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("together", [True, False], ids=["batch", "alone"])
def test_tree_equals_plain(shape, together: bool) -> None:  # type: ignore[no-untyped-def]
    decoder = tiny_decoder(seed=3)
    truth = [plain(decoder, prompt, NUM_TOKENS) for prompt in PROMPTS]
    of_prompt = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, truth, strict=True)}
    rng = np.random.default_rng(0)

    def draft(request: Request) -> DraftTree:
        expected = of_prompt[tuple(request.tokens[: request.num_prompt])]
        return shape(rng, request.tokens[-1], expected[len(request.output) :])

    groups = [PROMPTS] if together else [[prompt] for prompt in PROMPTS]
    outs = [
        out
        for group in groups
        for out in decoder.generate(
            group, max_new_tokens=NUM_TOKENS, drafter=Scripted(draft), num_nodes=24
        )
    ]
    assert [out.tokens for out in outs] == truth
    accepted = sum(sum(out.stats.accepted) for out in outs)
    assert accepted > 5 * NUM_TOKENS // 4  # the trees were of use, so the test tests something
