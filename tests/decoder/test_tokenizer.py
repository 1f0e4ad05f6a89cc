# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from a folder: special tokens, chat templates in all three places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny import char_tokenizer
from treeattn.decoder import Tokenizer

TEMPLATE = (
    "{% for message in messages %}\n{{ message.role[:1] }}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ eos_token }}{% endif %}"
)


def save(folder: Path, config: dict[str, object]) -> Path:
    char_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("place", ["string", "named", "file"])
def test_chat_template(place: str, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    config: dict[str, object] = {"eos_token": {"content": "Z"}}
    if place == "string":
        config["chat_template"] = TEMPLATE
    elif place == "named":
        config["chat_template"] = [
            {"name": "tool", "template": "no"},
            {"name": "default", "template": TEMPLATE},
        ]
    else:
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = Tokenizer.from_folder(save(tmp_path, config))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hey"}]) == "uheyZ"
    assert tokenizer.encode_prompt("hey") == tokenizer.encode("uheyZ")
    assert tokenizer.decode(tokenizer.encode("hey")) == "hey"


def test_without_a_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(save(tmp_path, {}))
    assert tokenizer.encode_prompt("hey") == tokenizer.encode("hey")
    with pytest.raises(ValueError, match="this tokenizer has no chat template"):
        tokenizer.apply_chat_template([])


def test_a_template_may_refuse(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    config = {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    tokenizer = Tokenizer.from_folder(save(tmp_path, config))
    with pytest.raises(ValueError, match="chat template: roles must alternate"):
        tokenizer.encode_prompt("hey")


def test_unknown_gguf_tokenizer_is_named() -> None:
    fields = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
    with pytest.raises(ValueError, match="GGUF tokenizer llama/default is not supported"):
        Tokenizer.from_gguf(fields)
