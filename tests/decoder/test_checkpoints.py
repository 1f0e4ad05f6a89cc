# SPDX-License-Identifier: Apache-2.0
"""Small random checkpoints saved by transformers give the logits transformers gives."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import chain_logits
from treeattn.decoder import Decoder

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Case:
    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def save(self, folder: Path) -> Any:
        """A transformers model with random weights, saved to `folder`."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.family}Config")(**COMMON | self.options)
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{self.family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                # Norm weights away from 1 and biases away from 0, so that none can be forgotten.
                parameter.copy_(1 + noise / 4 if parameter.dim() == 1 else noise / 8)
        model.save_pretrained(folder)
        return model


CASES = [
    Case("llama", "Llama", {"rope_theta": 5000.0}),
    Case("llama tied, biased, wide heads", "Llama", {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 40,
    }),
    Case("llama3 rope", "Llama", {"rope_parameters": LLAMA3_ROPE}),
    Case("qwen2", "Qwen2"),
    Case("qwen2 windowed above layer 1", "Qwen2", {
        "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
    }),
    Case("qwen3", "Qwen3", {"head_dim": 32}),
    Case("mistral with a window", "Mistral", {"sliding_window": 9}),
    Case("mistral without", "Mistral", {"sliding_window": None}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_and_tokens_equal_transformers(case: Case, tmp_path: Path) -> None:
    reference = case.save(tmp_path)
    decoder = Decoder.from_pretrained(tmp_path)
    tokens = torch.randint(160, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(chain_logits(decoder, tokens), expected, rtol=1e-4, atol=1e-4)

    (out,) = decoder.generate([tokens], max_new_tokens=16, ignore_eos=True)
    with torch.no_grad():
        law = reference(torch.tensor([tokens + out.tokens])).logits[0, len(tokens) - 1 : -1]
    assert out.tokens == law.argmax(-1).tolist()


def test_sharded(tmp_path: Path) -> None:
    case = CASES[0]
    reference = case.save(tmp_path / "whole")
    reference.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    whole, shards = (Decoder.from_pretrained(tmp_path / name) for name in ("whole", "shards"))
    assert torch.equal(chain_logits(whole, [1, 2, 3]), chain_logits(shards, [1, 2, 3]))
    next((tmp_path / "shards").glob("*-00002-*")).unlink()
    with pytest.raises(FileNotFoundError, match="00002"):
        Decoder.from_pretrained(tmp_path / "shards")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type yarn is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, got 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        (
            {"intermediate_size": 96},
            r"gate_proj.weight must have shape \[96, 64\], got \[112, 64\]",
        ),
        ({"num_hidden_layers": 2}, r"tensor model.layers.2\S+ is not supported"),
        ({"num_hidden_layers": 4}, r"has no tensor model.layers.3\S+"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    CASES[0].save(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        Decoder.from_pretrained(tmp_path)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither a \.gguf file nor a folder"):
        Decoder.from_pretrained(tmp_path)
