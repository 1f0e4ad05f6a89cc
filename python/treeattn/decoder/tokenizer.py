# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, the chat template, and the vocabulary check between two models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from treeattn.decoder.extras import require

_GGUF_SPECIAL, _GGUF_USER_DEFINED, _GGUF_UNUSED = 3, 4, 5
_INCOMPLETE = "\ufffd"  # what decoding part of a character gives


class Tokenizer:
    """A `tokenizers.Tokenizer` with its chat template.

    vocabulary maps id to token, padding entries left out.
    """

    def __init__(
        self,
        backend: Any,
        *,
        chat_template: str | None = None,
        template_tokens: Mapping[str, str] | None = None,
        padding_ids: Iterable[int] = (),
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._template_tokens = dict(template_tokens or {})
        self.vocabulary = {i: token for token, i in backend.get_vocab().items()}
        for i in padding_ids:
            self.vocabulary.pop(i, None)

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any]) -> Tokenizer:
        """Build the byte-level BPE described by GGUF metadata (pre-tokenizer `smollm`)."""
        tokenizers = require("tokenizers", extra="gguf")
        pre_tokenizers = require("tokenizers.pre_tokenizers", extra="gguf")
        kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm"):
            raise ValueError(
                f"GGUF tokenizer {kind[0]}/{kind[1]} is not supported; supported: gpt2/smollm"
            )
        tokens: list[str] = fields["tokenizer.ggml.tokens"]
        types: list[int] = fields["tokenizer.ggml.token_type"]
        merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
        vocab = {token: i for i, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        backend.decoder = tokenizers.decoders.ByteLevel()
        for i, token_type in enumerate(types):
            if token_type in (_GGUF_SPECIAL, _GGUF_USER_DEFINED):
                special = token_type == _GGUF_SPECIAL
                added = tokenizers.AddedToken(tokens[i], special=special, normalized=False)
                (backend.add_special_tokens if special else backend.add_tokens)([added])
        names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
        ids = {name: fields.get(f"tokenizer.ggml.{key}") for name, key in names.items()}
        return cls(
            backend,
            chat_template=fields.get("tokenizer.chat_template"),
            template_tokens={name: tokens[i] for name, i in ids.items() if i is not None},
            padding_ids=(i for i, kind in enumerate(types) if kind == _GGUF_UNUSED),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json`, with the chat template beside it if there is one."""
        tokenizers = require("tokenizers", extra="hf")
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text("utf-8")) if config_file.is_file() else {}
        template = config.get("chat_template")
        if isinstance(template, list):  # several named templates
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            template = template_file.read_text("utf-8")
        special: dict[str, str] = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            token = config.get(name)
            if token is not None:
                special[name] = token["content"] if isinstance(token, dict) else token
        return cls(backend, chat_template=template, template_tokens=special)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a user message: chat template applied, or plain text where there is none."""
        if self._chat_template is None:
            return self.encode(text, add_special_tokens=True)
        return self.encode(self.apply_chat_template([{"role": "user", "content": text}]))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a conversation, ready for the assistant's turn."""
        if self._chat_template is None:
            raise ValueError("this tokenizer has no chat template")
        sandbox = require("jinja2.sandbox", extra="hf")
        environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_template_error
        text: str = environment.from_string(self._chat_template).render(
            messages=messages, add_generation_prompt=True, **self._template_tokens
        )
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens leave no trace."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text


class TextStream:
    """Text of a growing token sequence, a complete character at a time.

    A token is decoded together with those since the last complete character, behind the tokens of
    the piece before, because decoders look at their neighbours.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0  # first id decoded along
        self._done = 0  # ids whose text has been returned

    def feed(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete."""
        self._ids.append(token)
        before, after = self._decode_window()
        if after.endswith(_INCOMPLETE):
            return ""
        self._context, self._done = self._done, len(self._ids)
        return after[len(before) :]

    def flush(self) -> str:
        """What is left of an incomplete character at the end."""
        before, after = self._decode_window()
        self._context = self._done = len(self._ids)
        return after[len(before) :]

    def _decode_window(self) -> tuple[str, str]:
        window = self._ids[self._context :]
        before = self._tokenizer.decode(window[: self._done - self._context])
        return before, self._tokenizer.decode(window)


def check_same_vocabulary(
    draft: Mapping[int, str], draft_size: int, target: Mapping[int, str], target_size: int
) -> None:
    """Raise ValueError unless both vocabularies give every id the same token.

    The sizes are those of the models' embeddings: ids without a token are padding, and a
    difference in padding alone is allowed.
    """
    differing = (i for i in sorted({*draft, *target}) if draft.get(i) != target.get(i))
    first = next(differing, None)
    if first is not None:
        raise ValueError(
            "the draft model must have the target's vocabulary: "
            f"draft has {len(draft)} tokens ({draft_size} ids), "
            f"target {len(target)} tokens ({target_size} ids), first differing id {first}: "
            f"{draft.get(first)!r} against {target.get(first)!r}"
        )


def _raise_template_error(message: str) -> None:
    raise ValueError(f"chat template: {message}")
