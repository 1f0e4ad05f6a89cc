# SPDX-License-Identifier: Apache-2.0
"""The head of an EAGLE-style drafter: one layer over the target's hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from treeattn.decoder.checkpoint import read_json, read_safetensors
from treeattn.decoder.config import ModelConfig
from treeattn.decoder.layer import Layer, take_layer
from treeattn.decoder.linear import Linear
from treeattn.decoder.model import Model
from treeattn.decoder.rotary import Rotary
from treeattn.decoder.weights import Weights
from treeattn.ops import tree_attention, write_kv
from treeattn.plan import TreePlan


@dataclass(frozen=True, eq=False)
class EagleHead:
    """One decoder layer that continues the target's hidden states (EAGLE, 2401.15077).

    Row t joins the target's feature at token t (its hidden state after the last norm) with the
    embedding of token t + 1, at position t. Its output stands for the feature at t + 1, and gives
    the law of token t + 2 over a reduced vocabulary.
    """

    config: ModelConfig
    target: Model  # whose embedding it shares
    fc: Linear  # [hidden, 2 * hidden]: embedding, then feature
    layer: Layer
    norm: Tensor
    lm_head: Linear
    rotary: Rotary
    target_ids: tuple[int, ...]  # the target's id of each draft id

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        plan: TreePlan,
        k_cache: Tensor,
        v_cache: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """Run the nodes `rows` of a plan behind the others, whose KV is written; writes theirs.

        rows: [M] int64. tokens: [M] int64, the token after each row's feature [M, hidden].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].

        Returns the next features [M, hidden].
        """
        cfg = self.config
        inputs = (self.target.embed(tokens), features)
        x = self.fc(torch.cat([F.rms_norm(part, (cfg.hidden_size,)) for part in inputs], -1))
        cos, sin = self.rotary.at(plan.positions[rows])
        q, k, v = self.layer.project(x, cos, sin, cfg)
        write_kv(k, v, k_cache, v_cache, plan.slot_mapping[rows])
        queries = q.new_zeros(plan.num_nodes, cfg.num_qo_heads, cfg.head_dim)
        queries[rows] = q
        attended = tree_attention(queries, k_cache, v_cache, plan)[rows]
        return self.layer.finish(x, attended.flatten(1), cfg)

    def log_probs(self, features: Tensor) -> Tensor:
        """[M, draft vocabulary] fp32 log probs of the token after next; features: [M, hidden]."""
        logits = self.lm_head(F.rms_norm(features, self.norm.shape, self.norm))
        return logits.float().log_softmax(-1)


def load_eagle_head(folder: str | Path, target: Model) -> EagleHead:
    """Load the head of `target` from a folder with config.json and model.safetensors.

    Tensors: `fc.weight`, `layers.0.*` as in a Llama layer, `norm.weight`, `lm_head.weight` and
    `d2t` [draft_vocab_size] int64, where draft id i is the target's id `i + d2t[i]`. They are cast
    to the target's dtype. Raises FileNotFoundError, or ValueError naming the key, tensor or shape
    that does not fit.
    """
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is no draft head: it has no {name}")
    fields = read_json(folder / "config.json")
    cfg = _config(fields, target.config)
    num_draft_ids = _positive(fields, "draft_vocab_size")
    dtype, device = target.embedding.dtype, target.embedding.device
    weights = Weights(read_safetensors(folder, dtype), device)
    head = EagleHead(
        config=cfg,
        target=target,
        fc=weights.linear("", {"fc": cfg.hidden_size}, 2 * cfg.hidden_size),
        layer=take_layer(weights, "layers.0.", cfg, window=None),
        norm=weights.take("norm.weight", cfg.hidden_size),
        lm_head=weights.linear("", {"lm_head": num_draft_ids}, cfg.hidden_size),
        rotary=Rotary(cfg, dtype, device),
        target_ids=_target_ids(weights.take("d2t", num_draft_ids), cfg.vocab_size),
    )
    weights.check_all_taken()
    return head


def _config(fields: dict[str, Any], target: ModelConfig) -> ModelConfig:
    """The head as a model of one layer, with the target's vocabulary and positions."""
    kind = fields.get("model_type")
    if kind != "eagle_head":
        raise ValueError(f"a draft head's model_type must be eagle_head, got {kind}")
    if _positive(fields, "num_hidden_layers") != 1:
        raise ValueError(
            f"a draft head's num_hidden_layers must be 1, got {fields['num_hidden_layers']}"
        )
    for key in ("hidden_size", "vocab_size"):
        expected = getattr(target, key)
        if _positive(fields, key) != expected:
            raise ValueError(
                f"a draft head's {key} must be its target's, {expected}, got {fields[key]}"
            )
    return ModelConfig(
        architecture="EagleHead",
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=_positive(fields, "intermediate_size"),
        num_layers=1,
        num_qo_heads=_positive(fields, "num_attention_heads"),
        num_kv_heads=_positive(fields, "num_key_value_heads"),
        head_dim=_positive(fields, "head_dim"),
        max_position=target.max_position,
        rms_eps=float(_field(fields, "rms_norm_eps")),
        rope_theta=float(_field(fields, "rope_theta")),
        rope_scaling=None,
        windows=(None,),
        tied=False,
        eos_ids=target.eos_ids,
    )


def _field(fields: dict[str, Any], key: str) -> Any:
    if key not in fields:
        raise ValueError(f"a draft head's config.json must have {key}")
    return fields[key]


def _positive(fields: dict[str, Any], key: str) -> int:
    value = int(_field(fields, key))
    if value < 1:
        raise ValueError(f"a draft head's {key} must be >= 1, got {value}")
    return value


def _target_ids(d2t: Tensor, vocab_size: int) -> tuple[int, ...]:
    """Target ids from EAGLE-3's map of differences."""
    if d2t.dtype != torch.int64:
        raise ValueError(f"d2t must be int64, got {d2t.dtype}")
    ids: list[int] = (d2t.cpu() + torch.arange(len(d2t))).tolist()
    seen: set[int] = set()
    for draft_id, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"d2t must lead to ids in [0, {vocab_size}), d2t[{draft_id}] to {token}"
            )
        if token in seen:
            raise ValueError(f"d2t must lead to different ids, d2t[{draft_id}] to {token} again")
        seen.add(token)
    return tuple(ids)
