# SPDX-License-Identifier: Apache-2.0
"""Plain decoding in plain torch, as a user would write it: what the demo's numbers stand beside.

F.linear on unpacked weights, a preallocated contiguous KV cache, scaled_dot_product_attention, one
token a step. It shares the checkpoint reader with the decoder and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from treeattn.decoder.checkpoint import load_checkpoint


class PlainTorch:
    """A llama-architecture checkpoint and its greedy decoding, one sequence at a time."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        checkpoint = load_checkpoint(path, dtype)
        self._config = checkpoint.config
        self._weights = dict(checkpoint.weights)
        self._embedding = self._weights["model.embed_tokens.weight"]
        self._head = self._weights.get("lm_head.weight", self._embedding)
        dim = self._config.head_dim
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self._frequencies = self._config.rope_theta**-exponents

    @classmethod
    def supports(cls, path: Path) -> bool:
        """Whether this baseline knows the checkpoint: llama in GGUF, no biases, no windows."""
        return path.suffix == ".gguf"

    @torch.inference_mode()
    def generate(
        self, prompt: Sequence[int], max_new_tokens: int
    ) -> tuple[list[int], float, float]:
        """Greedy continuation; (new ids with the end token, prefill seconds, decode seconds)."""
        cfg = self._config
        shape = (cfg.num_layers, 1, cfg.num_kv_heads, len(prompt) + max_new_tokens, cfg.head_dim)
        k_cache, v_cache = self._embedding.new_empty(shape), self._embedding.new_empty(shape)
        start = perf_counter()
        if len(prompt) > 1:
            self._forward(torch.tensor(prompt[:-1]), 0, k_cache, v_cache)
        prefilled = perf_counter()
        tokens: list[int] = []
        token = prompt[-1]
        for position in range(len(prompt) - 1, len(prompt) - 1 + max_new_tokens):
            logits = self._forward(torch.tensor([token]), position, k_cache, v_cache)
            token = int(logits.argmax())
            tokens.append(token)
            if token in cfg.eos_ids:
                break
        return tokens, prefilled - start, perf_counter() - prefilled

    def _forward(self, ids: Tensor, start: int, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Logits [V] after the last of `ids` [T], whose KV is written from position `start`."""
        cfg, stop = self._config, start + len(ids)
        angles = torch.outer(torch.arange(start, stop).float(), self._frequencies)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(k_cache.dtype), angles.sin().to(k_cache.dtype)
        h = F.embedding(ids, self._embedding)[None]  # [1, T, hidden]
        for i in range(cfg.num_layers):
            weight = self._layer(i)
            x = self._norm(h, weight("input_layernorm"))
            q, k, v = (
                F.linear(x, weight(f"self_attn.{name}_proj"))
                .view(1, len(ids), -1, cfg.head_dim)
                .transpose(1, 2)
                for name in "qkv"
            )
            k_cache[i, :, :, start:stop] = _rotate(k, cos, sin)
            v_cache[i, :, :, start:stop] = v
            out = F.scaled_dot_product_attention(
                _rotate(q, cos, sin),
                k_cache[i, :, :, :stop],
                v_cache[i, :, :, :stop],
                is_causal=len(ids) > 1,
                enable_gqa=True,
            )
            h = h + F.linear(out.transpose(1, 2).flatten(2), weight("self_attn.o_proj"))
            x = self._norm(h, weight("post_attention_layernorm"))
            gate = F.silu(F.linear(x, weight("mlp.gate_proj")))
            h = h + F.linear(gate * F.linear(x, weight("mlp.up_proj")), weight("mlp.down_proj"))
        h = self._norm(h[0, -1], self._weights["model.norm.weight"])
        return F.linear(h, self._head)

    def _layer(self, index: int) -> Callable[[str], Tensor]:
        return lambda name: self._weights[f"model.layers.{index}.{name}.weight"]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._config.rms_eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, rotate-half form; x [1, heads, T, head_dim], cos and sin [T, head_dim]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin
