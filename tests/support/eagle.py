# SPDX-License-Identifier: Apache-2.0
"""Tiny random draft heads on disk, and the head's forward pass written out without a cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from treeattn.decoder import Decoder
from treeattn.decoder.cache import PagedCache
from treeattn.decoder.forward import prefill

from support.tiny import CONFIG, random_weights, tiny_decoder

DRAFT_VOCAB = 40
DISTURBANCE = (0.06, 0.4)  # of the target and of the head by their layers
HEAD_CONFIG: dict[str, Any] = {
    "model_type": "eagle_head",
    "hidden_size": CONFIG.hidden_size,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
    "vocab_size": CONFIG.vocab_size,
    "draft_vocab_size": DRAFT_VOCAB,
}


def random_head(seed: int = 0, **changes: int) -> dict[str, Tensor]:
    """Weights of a head with `HEAD_CONFIG` but for `changes`.

    Norms lie away from 1, so that none can be forgotten.
    """
    fields = HEAD_CONFIG | changes
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 2 / shape[-1] ** 0.5

    def norm() -> Tensor:
        return 1 + torch.randn(hidden, generator=generator) / 4

    hidden, inner = fields["hidden_size"], fields["intermediate_size"]
    q_rows, kv_rows = (fields["head_dim"] * count for count in (6, 2))
    ids = torch.randperm(fields["vocab_size"], generator=generator)[:DRAFT_VOCAB]
    return {
        "fc.weight": normal(hidden, 2 * hidden),
        "layers.0.input_layernorm.weight": norm(),
        "layers.0.self_attn.q_proj.weight": normal(q_rows, hidden),
        "layers.0.self_attn.k_proj.weight": normal(kv_rows, hidden),
        "layers.0.self_attn.v_proj.weight": normal(kv_rows, hidden),
        "layers.0.self_attn.o_proj.weight": normal(hidden, q_rows),
        "layers.0.post_attention_layernorm.weight": norm(),
        "layers.0.mlp.gate_proj.weight": normal(inner, hidden),
        "layers.0.mlp.up_proj.weight": normal(inner, hidden),
        "layers.0.mlp.down_proj.weight": normal(hidden, inner),
        "norm.weight": norm(),
        "lm_head.weight": normal(DRAFT_VOCAB, hidden),
        "d2t": ids - torch.arange(DRAFT_VOCAB),
    }


def related_weights() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A target and a head that is often right.

    Both mostly follow one map from token to next token, which random layers disturb a little; the
    head knows no more of it than its reduced vocabulary.
    """
    target, head = random_weights(CONFIG, seed=0), random_head()
    embedding = target["model.embed_tokens.weight"]
    generator = torch.Generator().manual_seed(1)
    target["lm_head.weight"] = embedding[torch.randperm(len(embedding), generator=generator)]
    hidden = HEAD_CONFIG["hidden_size"]
    head["fc.weight"] = head["fc.weight"] / 8 + torch.eye(hidden, 2 * hidden)
    head["lm_head.weight"] = target["lm_head.weight"][head["d2t"] + torch.arange(DRAFT_VOCAB)]
    for weights in (target, head):
        for name in weights:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weights[name] = weights[name] * DISTURBANCE[weights is head]
    return target, head


def related_decoder(**options: Any) -> Decoder:
    """The target of `related_weights`; options of `tiny_decoder`."""
    return tiny_decoder(weights=related_weights()[0], **options)


def save_head(folder: Path, weights: dict[str, Tensor] | None = None, **changes: object) -> Path:
    """Write a head to `folder`; `changes` are fields of its config, None removes one."""
    torch_format = pytest.importorskip("safetensors.torch")
    folder.mkdir(parents=True, exist_ok=True)
    fields = {key: value for key, value in (HEAD_CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    torch_format.save_file(weights or related_weights()[1], folder / "model.safetensors")
    return folder


def target_features(decoder: Decoder, tokens: Sequence[int]) -> Tensor:
    """The target's hidden states [len(tokens), hidden] of one pass over a fresh cache."""
    cache: PagedCache = decoder._allocate(len(tokens))
    cache.pool.create(0, list(tokens))
    with torch.inference_mode():
        return prefill(decoder.model, cache, 0, tokens, 0)


def dense_log_probs(
    weights: dict[str, Tensor], embedding: Tensor, tokens: Sequence[int], features: Tensor
) -> Tensor:
    """Laws [len(tokens) - 1, DRAFT_VOCAB] of one sequence; row t's is of the token after t + 1.

    features: the target's at the first tokens; where they end, each row takes the output of the
    row before.
    """
    while True:
        num_rows = min(len(features), len(tokens) - 1)
        laws, outputs = _rows(weights, embedding, tokens[1 : num_rows + 1], features[:num_rows])
        if num_rows == len(tokens) - 1:
            return laws
        features = torch.cat((features, outputs[-1:]))


def _rows(
    weights: dict[str, Tensor], embedding: Tensor, tokens: Sequence[int], features: Tensor
) -> tuple[Tensor, Tensor]:
    """Laws and outputs of rows 0 .. len(tokens) - 1; tokens: the one after each feature."""
    num_rows = len(tokens)
    layer = {key.removeprefix("layers.0."): value for key, value in weights.items()}
    hidden, dim = features.shape[1], HEAD_CONFIG["head_dim"]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (hidden,), layer[name], HEAD_CONFIG["rms_norm_eps"])

    def rotated(x: Tensor) -> Tensor:
        half = dim // 2
        speed = HEAD_CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angle = torch.arange(num_rows)[:, None, None] * speed
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    embedded = embedding[torch.tensor(tokens)]
    x = torch.cat([F.rms_norm(part, (hidden,)) for part in (embedded, features)], -1)
    x = x @ weights["fc.weight"].T
    y = norm(x, "input_layernorm.weight")
    q, k, v = (
        (y @ layer[f"self_attn.{name}_proj.weight"].T).view(num_rows, -1, dim) for name in "qkv"
    )
    group = q.shape[1] // k.shape[1]
    k, v = (kv.repeat_interleave(group, 1) for kv in (rotated(k), v))
    scores = torch.einsum("ihd,jhd->hij", rotated(q), k) / dim**0.5
    future = torch.ones(num_rows, num_rows, dtype=torch.bool).triu(1)
    mixed = torch.einsum("hij,jhd->ihd", scores.masked_fill(future, -torch.inf).softmax(-1), v)
    x = x + mixed.flatten(1) @ layer["self_attn.o_proj.weight"].T
    y = norm(x, "post_attention_layernorm.weight")
    gate, up = (y @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    x = x + (F.silu(gate) * up) @ layer["mlp.down_proj.weight"].T
    logits = F.rms_norm(x, (hidden,), weights["norm.weight"]) @ weights["lm_head.weight"].T
    return logits.log_softmax(-1), x
