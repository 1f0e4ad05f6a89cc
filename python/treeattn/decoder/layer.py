# SPDX-License-Identifier: Apache-2.0
"""One transformer layer: what comes before its attention, and what comes after."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from treeattn.decoder.config import ModelConfig
from treeattn.decoder.linear import Linear
from treeattn.decoder.rotary import rotate
from treeattn.decoder.weights import Weights


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one layer; q, k, v share one product, gate and up another."""

    attention_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None  # [num_qo_heads + num_kv_heads, head_dim]
    attention_out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None

    def project(
        self, h: Tensor, cos: Tensor, sin: Tensor, cfg: ModelConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values of the nodes, [N, heads, head_dim] each.

        h: [at least N, hidden], cos, sin: [N, 1, head_dim].
        """
        num_nodes = cos.shape[0]
        num_qk, num_v = cfg.num_qo_heads + cfg.num_kv_heads, cfg.num_kv_heads
        x = self.qkv(rms_norm(h, self.attention_norm, cfg))[:num_nodes]
        qk, v = torch.split(x.view(num_nodes, num_qk + num_v, cfg.head_dim), [num_qk, num_v], 1)
        if self.qk_norm is not None:
            qk = F.rms_norm(qk, (cfg.head_dim,), eps=cfg.rms_eps) * self.qk_norm
        q, k = torch.split(rotate(qk, cos, sin), [cfg.num_qo_heads, cfg.num_kv_heads], 1)
        return q, k, v

    def finish(self, h: Tensor, attended: Tensor, cfg: ModelConfig) -> Tensor:
        """The layer's output [N, hidden]; attended: [N, num_qo_heads * head_dim]."""
        h = h + self.attention_out(attended)
        gate, up = self.gate_up(rms_norm(h, self.mlp_norm, cfg)).chunk(2, -1)
        return h + self.down(F.silu(gate) * up)


def rms_norm(x: Tensor, weight: Tensor, cfg: ModelConfig) -> Tensor:
    """`x` over its root mean square, times `weight`, with the model's epsilon."""
    return F.rms_norm(x, weight.shape, weight, cfg.rms_eps)


def take_layer(weights: Weights, prefix: str, cfg: ModelConfig, window: int | None) -> Layer:
    """Assemble the layer whose tensors' names start with `prefix`."""
    q_rows, kv_rows = cfg.num_qo_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    gate_up = {"gate_proj": cfg.intermediate_size, "up_proj": cfg.intermediate_size}
    return Layer(
        attention_norm=weights.take(prefix + "input_layernorm.weight", cfg.hidden_size),
        qkv=weights.linear(attention, qkv, cfg.hidden_size),
        qk_norm=_qk_norm(weights, attention, cfg),
        attention_out=weights.linear(attention, {"o_proj": cfg.hidden_size}, q_rows),
        mlp_norm=weights.take(prefix + "post_attention_layernorm.weight", cfg.hidden_size),
        gate_up=weights.linear(mlp, gate_up, cfg.hidden_size),
        down=weights.linear(mlp, {"down_proj": cfg.hidden_size}, cfg.intermediate_size),
        window=window,
    )


def _qk_norm(weights: Weights, attention: str, cfg: ModelConfig) -> Tensor | None:
    """The weights of the norms of each query and key head, one row per head."""
    q_norm = weights.take_optional(attention + "q_norm.weight", cfg.head_dim)
    if q_norm is None:
        return None
    k_norm = weights.take(attention + "k_norm.weight", cfg.head_dim)
    return torch.cat((q_norm.expand(cfg.num_qo_heads, -1), k_norm.expand(cfg.num_kv_heads, -1)))
