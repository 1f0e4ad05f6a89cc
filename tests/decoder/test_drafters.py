# SPDX-License-Identifier: Apache-2.0
"""What each drafter proposes, and that no draft changes what is decoded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.tiny import char_tokenizer, plain, tiny_decoder
from treeattn.decoder import Decoder, Drafter, LayerSkip, PromptLookup, Request, SuffixDraft
from treeattn.decoder.drafters.expansion import grow_trees
from treeattn.decoder.linear import MIN_ROWS
from treeattn.tree import DraftTree

PROMPT = [4, 8, 15, 16, 23]


def observed(drafter: Drafter, tokens: list[int]) -> Request:
    """A request that joined with all but the last token and has since decoded that one."""
    request = Request(seq=3, tokens=tokens[:-1], limit=100)
    drafter.observe(request, request.tokens)
    request.tokens.append(tokens[-1])
    drafter.observe(request, tokens[-1:])
    return request


def test_lookup_continues_the_longest_match_at_its_latest_place() -> None:
    drafter = PromptLookup(min_match=2)
    tokens = [1, 2, 3, 50, 9, 2, 3, 60, 9, 2, 3, 70, 71, 72, 5, 9, 2, 3]
    request = observed(drafter, tokens)
    (tree,) = drafter.propose([request], 4, "chain")
    assert tree == DraftTree.chain([3, 70, 71, 72])  # "9 2 3" comes last before 70
    (tree,) = drafter.propose([observed(drafter, [1, 2, 3, 50, 8, 2, 3])], 6, "chain")
    assert tree == DraftTree.chain([3, 50, 8, 2, 3])  # nothing known past the end


def test_lookup_needs_a_match_and_forgets_what_left() -> None:
    drafter = PromptLookup(min_match=2)
    request = observed(drafter, [1, 2, 3, 4, 9, 3])
    assert drafter.propose([request], 4, "chain") == [None]
    drafter.release(request)
    again = Request(seq=3, tokens=[2, 3], limit=100)
    drafter.observe(again, again.tokens)
    assert drafter.propose([again], 4, "chain") == [None]


def test_suffix_offers_every_continuation() -> None:
    drafter = SuffixDraft(min_match=2)
    request = observed(drafter, [1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3, 60, 7, 1, 2, 3])
    (tree,) = drafter.propose([request], 24, "tree")
    assert tree is not None
    children = [int(tree.tokens[i]) for i in tree.children(0)]
    assert children == [60, 50]  # two of three times 60
    assert tree.tokens[0] == 3
    (chain,) = drafter.propose([request], 24, "chain")
    assert chain is not None
    assert chain.tokens[:2].tolist() == [3, 60]
    assert chain.parents.tolist() == list(range(-1, len(chain) - 1))


def test_suffix_spends_no_paid_rows_on_a_weak_match() -> None:
    drafter = SuffixDraft(min_match=2)
    request = observed(drafter, [9, 3, 50, 51, 52, 53, 54, 55, 8, 3])  # only "3" was seen before
    (tree,) = drafter.propose([request], 16, "tree")
    assert tree is not None
    assert len(tree) == MIN_ROWS
    mates = [request] * MIN_ROWS  # the rows are taken by roots already
    assert drafter.propose(mates, 16, "tree") == [None] * MIN_ROWS


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("num_nodes", [1, 2, 6, 11])
def test_growth_takes_the_likeliest_paths(shape: str, num_nodes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    law_of: dict[tuple[int, ...], torch.Tensor] = {}

    def log_probs(requests: list[Request], trees: list[DraftTree]) -> list[torch.Tensor]:
        rows = []
        for tree in trees:
            for node in range(len(tree)):
                path = tuple(tree.tokens[tree.path(node)].tolist())
                law = torch.randn(9, generator=generator).log_softmax(-1)
                rows.append(law_of.setdefault(path, law))
        sizes = [len(tree) for tree in trees]
        return list(torch.split(torch.stack(rows), sizes))

    requests = [Request(seq=root, tokens=[root], limit=100) for root in (1, 2)]
    trees = grow_trees(requests, num_nodes, shape, log_probs)
    for tree in trees:
        assert len(tree) == num_nodes
        assert shape == "tree" or tree == DraftTree(
            tree.tokens, range(-1, num_nodes - 1), scores=tree.scores
        )
        for node in range(1, num_nodes):
            path = tree.tokens[tree.path(node)].tolist()
            score = sum(float(law_of[tuple(path[:i])][path[i]]) for i in range(1, len(path)))
            assert tree.scores is not None
            assert tree.scores[node] == pytest.approx(score)


def layer_skip(decoder: Decoder) -> LayerSkip:
    assert decoder._cache is not None
    return LayerSkip(decoder.model, decoder._cache, num_layers=2)


def same_model(decoder: Decoder) -> Drafter:
    return tiny_decoder(tokenizer=char_tokenizer()).as_drafter_for(decoder)


@pytest.mark.parametrize("make", [layer_skip, same_model], ids=lambda make: make.__name__)
@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_a_perfect_draft_is_always_accepted(make: Callable[[Decoder], Drafter], shape: str) -> None:
    """All of the target's layers, or the target itself, as the draft: every level is right."""
    decoder = tiny_decoder(num_blocks=128, tokenizer=char_tokenizer())
    prompts = [PROMPT, list(range(20)), [7]]
    expected = [plain(decoder, prompt, 31) for prompt in prompts]
    outs = decoder.generate(
        prompts, max_new_tokens=31, drafter=make(decoder), shape=shape, num_nodes=5
    )
    assert [out.tokens for out in outs] == expected
    per_step = 4 if shape == "chain" else 1  # depth of five nodes, four to a level
    for out in outs:
        assert out.stats.accepted[:-1] == [per_step] * (out.stats.steps - 1)


def test_draft_model_without_room_drafts_nothing() -> None:
    target = tiny_decoder(tokenizer=char_tokenizer())
    draft = tiny_decoder(seed=1, tokenizer=char_tokenizer())
    expected = [plain(target, prompt, 30) for prompt in ([7], list(range(40)))]
    outs = target.generate(
        [[7], list(range(40))],
        max_new_tokens=30,
        drafter=draft.as_drafter_for(target, num_blocks=8),
        num_nodes=5,
    )
    assert [out.tokens for out in outs] == expected
    assert outs[0].stats.drafted > 0
    assert outs[1].stats.drafted == 0


def test_draft_model_serves_several_calls_and_gives_its_blocks_back() -> None:
    target = tiny_decoder(tokenizer=char_tokenizer())
    drafter = tiny_decoder(seed=1, tokenizer=char_tokenizer()).as_drafter_for(target)
    for _ in range(2):
        (out,) = target.generate([PROMPT], max_new_tokens=20, drafter=drafter)
        assert out.tokens == plain(target, PROMPT, 20)
    assert drafter._cache.pool.num_free == drafter._cache.num_blocks
    drafter._cache.pool.check()
