# SPDX-License-Identifier: Apache-2.0
"""The transformer: one forward pass for prefill, plain decoding and verifying a tree alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from treeattn.decoder.checkpoint import Checkpoint
from treeattn.decoder.config import ModelConfig
from treeattn.decoder.layer import Layer, rms_norm, take_layer
from treeattn.decoder.linear import Linear, pad_rows
from treeattn.decoder.rotary import Rotary
from treeattn.decoder.weights import Weights
from treeattn.ops import tree_attention, write_kv
from treeattn.plan import TreePlan


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

        Returns (logits [M, V], the hidden states of all nodes after the last norm [N, hidden]).
        """
        cfg = self.config
        num_nodes = tokens.shape[0]
        h = pad_rows(self.embed(tokens))
        cos, sin = self.rotary.at(plan.positions)
        attended = h.new_zeros(h.shape[0], cfg.num_qo_heads * cfg.head_dim)
        out = attended[:num_nodes].view(num_nodes, cfg.num_qo_heads, cfg.head_dim)
        for i, layer in enumerate(self.layers[:num_layers]):
            q, k, v = layer.project(h, cos, sin, cfg)
            write_kv(k, v, k_caches[i], v_caches[i], plan.slot_mapping)
            tree_attention(q, k_caches[i], v_caches[i], plan, window=layer.window, out=out)
            h = layer.finish(h, attended, cfg)
        h = rms_norm(h[:num_nodes], self.norm, cfg)
        return self.head(h if rows is None else h.index_select(0, rows)), h

    def embed(self, tokens: Tensor) -> Tensor:
        """[N, hidden]; tokens: [N] int64, padding included."""
        return F.embedding(tokens.clamp(0, self.config.vocab_size - 1), self.embedding)


def build_model(checkpoint: Checkpoint, device: torch.device) -> Model:
    """Assemble the model; consumes `checkpoint.weights`, so that no weight is held twice.

    Raises ValueError for a tensor that is missing, has the wrong shape or is not understood.
    """
    cfg = checkpoint.config
    weights = Weights(checkpoint.weights, device)
    embedding = weights.take("model.embed_tokens.weight", cfg.vocab_size, cfg.hidden_size)
    layers = [
        take_layer(weights, f"model.layers.{i}.", cfg, cfg.windows[i])
        for i in range(cfg.num_layers)
    ]
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
