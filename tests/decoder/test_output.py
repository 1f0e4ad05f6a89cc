# SPDX-License-Identifier: Apache-2.0
"""Stop strings, and text that grows a token at a time."""

from __future__ import annotations

import pytest
from support.tiny import CHARACTERS, Scripted, char_tokenizer, plain, tiny_decoder
from treeattn.decoder import Decoder, Request, TextStream
from treeattn.decoder.output import append_tokens
from treeattn.tree import DraftTree

PROMPT = [4, 8, 15, 16, 23]


@pytest.fixture
def decoder() -> Decoder:
    return tiny_decoder(vocab_size=60, tokenizer=char_tokenizer(60))


def test_a_stop_string_ends_the_text_before_it(decoder: Decoder) -> None:
    """Within an accepted path and across the border of two steps."""
    truth = plain(decoder, PROMPT, 12)
    text = "".join(CHARACTERS[token] for token in truth)
    stop = text[4:7]
    assert text.find(stop) == 4
    for depth in (0, 1, 2, 5, 9):

        def draft(request: Request, depth: int = depth) -> DraftTree:
            done = len(request.output)
            return DraftTree.chain([request.tokens[-1], *truth[done : done + depth]])

        (out,) = decoder.generate(
            [PROMPT], max_new_tokens=12, drafter=Scripted(draft), stop=["~never~", stop]
        )
        assert out.text == text[:4]
        assert out.tokens == truth[:7]
        assert out.finish_reason == "stop"
        streamed = decoder.stream(PROMPT, max_new_tokens=12, drafter=Scripted(draft), stop=stop)
        assert list(streamed) == truth[:7]


def append_text(text: str, stop: tuple[str, ...]) -> Request:
    """A request that has emitted `text`, a token per character."""
    tokenizer = char_tokenizer(60)
    request = Request(seq=0, tokens=[0], limit=99, stop=stop, text_stream=TextStream(tokenizer))
    append_tokens(request, [CHARACTERS.index(character) for character in text])
    return request


@pytest.mark.parametrize(
    ("text", "stop", "kept", "num_tokens"),
    [
        ("abcdef", ("cd",), "ab", 4),
        ("abcdef", ("e", "cde"), "ab", 5),  # both complete at once: the earlier start wins
        ("abcdef", ("ef", "bc"), "a", 3),
        ("abcdef", ("a",), "", 1),
        ("aabaac", ("aac",), "aab", 6),
        ("abcdef", ("xyz",), "abcdef", 6),
    ],
)
def test_where_text_is_cut(text: str, stop: tuple[str, ...], kept: str, num_tokens: int) -> None:
    request = append_text(text, stop)
    assert request.text == kept
    assert len(request.output) == num_tokens
    assert request.finish_reason == (None if kept == text else "stop")


def test_text_stream_waits_for_whole_characters() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from treeattn.decoder import Tokenizer

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: i for i, character in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(backend)  # a token per byte
    text = "naïve 木 🌲!"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    stream = TextStream(tokenizer)
    pieces = [stream.feed(token) for token in ids]
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece] == list(text)
    assert stream.flush() == ""

    cut = TextStream(tokenizer)
    assert "".join(cut.feed(token) for token in ids[:-3]) == "naïve 木 "
    assert cut.flush() == "\ufffd"  # two bytes of four
