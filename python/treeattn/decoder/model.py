# SPDX-License-Identifier: Apache-2.0
"""The transformer: one forward pass for prefill, plain decoding and verifying a tree alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from treeattn.decoder.checkpoint import Checkpoint
from treeattn.decoder.config import ModelConfig
from treeattn.decoder.linear import Linear, pad_rows
from treeattn.decoder.rotary import Rotary, rotate
from treeattn.ops import tree_attention, write_kv
from treeattn.plan import TreePlan


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


@dataclass(frozen=True, eq=False)
class Model:
    """A decoder-only transformer over paged KV."""

    config: ModelConfig
    embedding: Tensor  # [V, hidden]
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    rotary: Rotary

    def forward(
        self,
        tokens: Tensor,
        plan: TreePlan,
        k_caches: Tensor,
        v_caches: Tensor,
        *,
        rows: Tensor | None = None,
        num_layers: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the nodes of a plan; writes their KV to `plan.slot_mapping`.

        tokens: [N] int64; ids outside the vocabulary are padding. k_caches, v_caches: [L,
        num_blocks, block_size, num_kv_heads, head_dim]. rows: [M] int64 nodes that need logits
        (default: all). num_layers: stop after that many layers (early exit).

        Returns (logits [M, V], the hidden states they come from [M, hidden], after the last norm).
        """
        cfg = self.config
        num_nodes = tokens.shape[0]
        h = pad_rows(F.embedding(tokens.clamp(0, cfg.vocab_size - 1), self.embedding))
        cos, sin = self.rotary.at(plan.positions)
        attended = h.new_zeros(h.shape[0], cfg.num_qo_heads * cfg.head_dim)
        out = attended[:num_nodes].view(num_nodes, cfg.num_qo_heads, cfg.head_dim)
        for i, layer in enumerate(self.layers[:num_layers]):
            q, k, v = self._qkv(layer, h, cos, sin)
            write_kv(k, v, k_caches[i], v_caches[i], plan.slot_mapping)
            tree_attention(q, k_caches[i], v_caches[i], plan, window=layer.window, out=out)
            h = h + layer.attention_out(attended)
            x = layer.gate_up(self._norm(h, layer.mlp_norm))
            gate, up = x.chunk(2, -1)
            h = h + layer.down(F.silu(gate) * up)
        h = h[:num_nodes] if rows is None else h.index_select(0, rows)
        h = self._norm(h, self.norm)
        return self.head(h), h

    def _qkv(
        self, layer: Layer, h: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values of the nodes, [N, heads, head_dim] each."""
        num_nodes, cfg = cos.shape[0], self.config
        num_qk, num_v = cfg.num_qo_heads + cfg.num_kv_heads, cfg.num_kv_heads
        x = layer.qkv(self._norm(h, layer.attention_norm))[:num_nodes]
        qk, v = torch.split(x.view(num_nodes, num_qk + num_v, cfg.head_dim), [num_qk, num_v], 1)
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (cfg.head_dim,), eps=cfg.rms_eps) * layer.qk_norm
        q, k = torch.split(rotate(qk, cos, sin), [cfg.num_qo_heads, cfg.num_kv_heads], 1)
        return q, k, v

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_eps)


def build_model(checkpoint: Checkpoint, device: torch.device) -> Model:
    """Assemble the model; consumes `checkpoint.weights`, so that no weight is held twice.

    Raises ValueError for a tensor that is missing, has the wrong shape or is not understood.
    """
    cfg = checkpoint.config
    weights = _Weights(checkpoint.weights, device)
    q_rows, kv_rows = cfg.num_qo_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    embedding = weights.take("model.embed_tokens.weight", cfg.vocab_size, cfg.hidden_size)
    layers = []
    for i in range(cfg.num_layers):
        prefix = f"model.layers.{i}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        gate_up = {"gate_proj": cfg.intermediate_size, "up_proj": cfg.intermediate_size}
        layers.append(
            Layer(
                attention_norm=weights.take(prefix + "input_layernorm.weight", cfg.hidden_size),
                qkv=weights.linear(attention, qkv, cfg.hidden_size),
                qk_norm=_qk_norm(weights, attention, cfg),
                attention_out=weights.linear(attention, {"o_proj": cfg.hidden_size}, q_rows),
                mlp_norm=weights.take(prefix + "post_attention_layernorm.weight", cfg.hidden_size),
                gate_up=weights.linear(mlp, gate_up, cfg.hidden_size),
                down=weights.linear(mlp, {"down_proj": cfg.hidden_size}, cfg.intermediate_size),
                window=cfg.windows[i],
            )
        )
    norm = weights.take("model.norm.weight", cfg.hidden_size)
    if cfg.tied:
        weights.take_optional("lm_head.weight", cfg.vocab_size, cfg.hidden_size)
        head = Linear(embedding)
    else:
        head = weights.linear("", {"lm_head": cfg.vocab_size}, cfg.hidden_size)
    weights.check_all_taken()
    return Model(
        config=cfg,
        embedding=embedding,
        layers=tuple(layers),
        norm=norm,
        head=head,
        rotary=Rotary(cfg, embedding.dtype, device),
    )


def _qk_norm(weights: _Weights, attention: str, cfg: ModelConfig) -> Tensor | None:
    """The weights of the norms of each query and key head, one row per head."""
    q_norm = weights.take_optional(attention + "q_norm.weight", cfg.head_dim)
    if q_norm is None:
        return None
    k_norm = weights.take(attention + "k_norm.weight", cfg.head_dim)
    return torch.cat((q_norm.expand(cfg.num_qo_heads, -1), k_norm.expand(cfg.num_kv_heads, -1)))


class _Weights:
    """Named tensors, each taken once and checked."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device

    def take(self, name: str, *shape: int) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"the checkpoint has no tensor {name}")
        tensor = self._tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
        return tensor.to(self._device)

    def take_optional(self, name: str, *shape: int) -> Tensor | None:
        return self.take(name, *shape) if name in self._tensors else None

    def linear(self, prefix: str, rows: dict[str, int], in_features: int) -> Linear:
        """The projections `rows` (name to output rows), joined into one product."""
        names = [prefix + name for name in rows]
        weights = [
            self.take(f"{name}.weight", count, in_features)
            for name, count in zip(names, rows.values(), strict=True)
        ]
        biases = [
            self.take_optional(f"{name}.bias", count)
            for name, count in zip(names, rows.values(), strict=True)
        ]
        present = [bias for bias in biases if bias is not None]
        if present and len(present) < len(biases):
            raise ValueError(f"{', '.join(names)}: all must have a bias, or none")
        return Linear(torch.cat(weights), torch.cat(present) if present else None)

    def check_all_taken(self) -> None:
        left = [name for name in self._tensors if not name.endswith("rotary_emb.inv_freq")]
        if left:
            raise ValueError(f"tensor {left[0]} is not supported by this decoder")
