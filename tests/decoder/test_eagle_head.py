# SPDX-License-Identifier: Apache-2.0
"""Draft heads on disk: what is read, and what is said of a folder that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.eagle import random_head, save_head
from support.tiny import tiny_decoder
from torch import Tensor
from treeattn.decoder.eagle_head import load_eagle_head


def test_tensors_are_cast_to_the_target_but_ids_are_not(tmp_path: Path) -> None:
    weights = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in random_head().items()
    }
    head = load_eagle_head(save_head(tmp_path, weights), tiny_decoder().model)
    assert head.norm.dtype == torch.float32
    assert torch.equal(head.norm, weights["norm.weight"].float())
    expected = weights["d2t"] + torch.arange(len(weights["d2t"]))
    assert list(head.target_ids) == expected.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type must be eagle_head, got llama"),
        ({"num_hidden_layers": 2}, "num_hidden_layers must be 1, got 2"),
        ({"hidden_size": 32}, "hidden_size must be its target's, 64, got 32"),
        ({"vocab_size": 65}, "vocab_size must be its target's, 64, got 65"),
        ({"head_dim": 0}, "head_dim must be >= 1, got 0"),
        ({"rope_theta": None}, "config.json must have rope_theta"),
        ({"draft_vocab_size": None}, "config.json must have draft_vocab_size"),
        ({"draft_vocab_size": 41}, r"lm_head.weight must have shape \[41, 64\], got \[40, 64\]"),
        (
            {"num_attention_heads": 4},
            r"layers.0.self_attn.q_proj.weight must have shape \[64, 64\], got \[96, 64\]",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_configs_that_do_not_fit(change: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_eagle_head(save_head(tmp_path, **change), tiny_decoder().model)


D2T = random_head()["d2t"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": None}, "has no tensor fc.weight"),
        (
            {"fc.weight": torch.ones(64, 64)},
            r"fc.weight must have shape \[64, 128\], got \[64, 64\]",
        ),
        ({"layers.0.mlp.up_proj.weight": None}, "has no tensor layers.0.mlp.up_proj.weight"),
        ({"extra.weight": torch.ones(1)}, "tensor extra.weight is not supported"),
        ({"d2t": None}, "has no tensor d2t"),
        ({"d2t": D2T[:-1]}, r"d2t must have shape \[40\], got \[39\]"),
        ({"d2t": D2T.float()}, "d2t must be int64, got torch.float32"),
        ({"d2t": D2T + 64}, r"d2t must lead to ids in \[0, 64\), d2t\[0\] to"),
        ({"d2t": -torch.arange(40)}, r"d2t must lead to different ids, d2t\[1\] to 0 again"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_tensors_that_do_not_fit(
    change: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    weights = random_head() | change
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        load_eagle_head(save_head(tmp_path, kept), tiny_decoder().model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_not_a_head(name: str, tmp_path: Path) -> None:
    (save_head(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"is no draft head: it has no {name}"):
        tiny_decoder().load_draft_head(tmp_path)


@pytest.mark.parametrize("limit", ["top_k", "depth", "num_blocks"])
def test_limits(limit: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{limit} must be >= 1, got 0"):
        tiny_decoder().load_draft_head(save_head(tmp_path), **{limit: 0})
