# SPDX-License-Identifier: Apache-2.0
"""A22: draft and target must share a vocabulary; a difference in padding alone is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny import Scripted, char_tokenizer, plain, tiny_decoder
from treeattn.decoder import DraftModel, Request
from treeattn.decoder.tokenizer import check_same_vocabulary
from treeattn.tree import DraftTree

PROMPT = [4, 8, 15, 16, 23]


@pytest.mark.parametrize("draft_size", [64, 60, 72], ids=["same", "fewer ids", "more ids"])
def test_padding_may_differ(draft_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty tokens; the embeddings of the models are padded to different sizes."""
    target = tiny_decoder(tokenizer=char_tokenizer(60))
    draft = tiny_decoder(seed=1, vocab_size=draft_size, tokenizer=char_tokenizer(60))
    expected = plain(target, PROMPT, 24)

    drafted: list[int] = []
    propose = DraftModel.propose_while

    def spy(self: DraftModel, *args: object):  # type: ignore[no-untyped-def]
        trees = propose(self, *args)  # type: ignore[arg-type]
        drafted.extend(int(tree.tokens.max()) for tree in trees if tree is not None)
        return trees

    monkeypatch.setattr(DraftModel, "propose_while", spy)
    (out,) = target.generate([PROMPT], max_new_tokens=24, drafter=draft.as_drafter_for(target))
    assert out.tokens == expected
    assert drafted
    assert max(drafted) < 64


def test_ids_past_the_target_are_no_part_of_the_draft_law() -> None:
    """A draft of more ids than the target has its law renormalised over the target's."""
    target = tiny_decoder(tokenizer=char_tokenizer(60))
    draft = tiny_decoder(seed=1, vocab_size=72, tokenizer=char_tokenizer(60))
    drafter = draft.as_drafter_for(target)
    request = Request(seq=0, tokens=[*PROMPT], limit=len(PROMPT) + 10)
    (tree,), laws = drafter.draw([request], 5, "tree", draws="iid", temperature=1.0)
    (law,) = laws.probs
    assert tree is not None and len(tree) == 5 and law is not None
    rows = sorted(set(tree.draft_rows[1:].tolist()))
    assert law.shape == (len(rows), 64)
    torch.testing.assert_close(law.sum(1), torch.ones(len(rows)))


def test_different_tokens_are_refused() -> None:
    target = tiny_decoder(tokenizer=char_tokenizer(60))
    draft = tiny_decoder(vocab_size=50, tokenizer=char_tokenizer(50, swap=(7, 9)))
    message = r"draft has 50 tokens \(50 ids\), target 60 tokens \(64 ids\), first differing id 7"
    with pytest.raises(ValueError, match=message):
        draft.as_drafter_for(target)


def test_a_missing_token_is_no_padding() -> None:
    vocabulary = {i: chr(97 + i) for i in range(12)}
    shorter = {i: token for i, token in vocabulary.items() if i < 10}
    check_same_vocabulary(vocabulary, 12, vocabulary, 16)
    with pytest.raises(ValueError, match=r"first differing id 10: None against 'k'"):
        check_same_vocabulary(shorter, 10, vocabulary, 12)


def test_without_a_tokenizer_nothing_can_be_compared() -> None:
    with pytest.raises(ValueError, match="the draft model has no tokenizer"):
        tiny_decoder().as_drafter_for(tiny_decoder())


def test_drafted_ids_outside_the_vocabulary_are_never_accepted() -> None:
    decoder = tiny_decoder()
    expected = plain(decoder, PROMPT, 8)
    rng = np.random.default_rng(0)
    outside = [64, 71, 2**31 - 1, -1, -7]

    def draft(request):  # type: ignore[no-untyped-def]
        done = len(request.output)
        return DraftTree(
            [request.tokens[-1], int(rng.choice(outside)), *expected[done : done + 1]],
            [-1, 0, 0][: 2 + len(expected[done : done + 1])],
        )

    (out,) = decoder.generate([PROMPT], max_new_tokens=8, drafter=Scripted(draft))
    assert out.tokens == expected
    assert sum(out.stats.accepted) > 0
