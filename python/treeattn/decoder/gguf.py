# SPDX-License-Identifier: Apache-2.0
"""GGUF files of llama architecture, dequantised."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treeattn.decoder.config import ModelConfig, config_from_gguf
from treeattn.decoder.extras import require

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def read_gguf(
    path: Path, dtype: torch.dtype
) -> tuple[ModelConfig, dict[str, Tensor], dict[str, Any]]:
    """Config, weights under the names a safetensors checkpoint uses, and raw metadata.

    Quantised tensors are dequantised in fp32, then cast to `dtype`.
    Raises ValueError for an architecture or tensor this decoder does not know.
    """
    gguf = require("gguf", extra="gguf")
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{path}: tensor token_embd.weight is missing")
    vocab_size = int(tensors["token_embd.weight"].shape[1])
    config = config_from_gguf(fields, vocab_size, tied="output.weight" not in tensors)
    heads = {"attn_q": config.num_qo_heads, "attn_k": config.num_kv_heads}
    weights = {}
    for name, tensor in tensors.items():
        weight = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)).to(dtype)
        kind = name.split(".")[-2]
        if kind in heads:
            weight = _unpermute(weight, heads[kind])
        weights[_checkpoint_name(name)] = weight
    return config, weights, fields


def _checkpoint_name(name: str) -> str:
    block = _BLOCK_TENSOR.fullmatch(name)
    if block and block[2] in _IN_BLOCK:
        return f"model.layers.{block[1]}.{_IN_BLOCK[block[2]]}.{block[3]}"
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{suffix}"
    raise ValueError(f"GGUF tensor {name} is not supported")


def _unpermute(weight: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of each head's two rotary halves (rows of q and k)."""
    rows = weight.view(num_heads, -1, 2, *weight.shape[1:])  # [heads, head_dim / 2, 2, ...]
    return rows.transpose(1, 2).reshape(weight.shape)
