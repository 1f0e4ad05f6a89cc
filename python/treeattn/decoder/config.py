# SPDX-License-Identifier: Apache-2.0
"""What the decoder must know of a checkpoint's architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rotary scaling: long wavelengths are stretched, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family.

    windows holds one entry per layer: the sliding window in positions, or None.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    windows: tuple[int | None, ...]
    tied: bool
    eos_ids: tuple[int, ...]


def config_from_json(config: Json, generation: Json) -> ModelConfig:
    """Read a `config.json` (and `generation_config.json`, which may be empty).

    Raises ValueError naming the architecture or feature that is not supported.
    """
    architecture = str((config.get("architectures") or [config.get("model_type")])[0])
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture {architecture} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    _refuse_unsupported(config)
    num_qo_heads = int(config["num_attention_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // num_qo_heads
    rope = _rope_parameters(config)
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_qo_heads=num_qo_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_qo_heads),
        head_dim=int(head_dim),
        max_position=int(config["max_position_embeddings"]),
        rms_eps=float(config["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(rope),
        windows=_windows(config, architecture),
        tied=bool(config.get("tie_word_embeddings", False)),
        eos_ids=_eos_ids(config, generation),
    )


def config_from_gguf(fields: Json, vocab_size: int, tied: bool) -> ModelConfig:
    """Read the metadata of a GGUF file; `fields` maps key to value."""
    architecture = fields["general.architecture"]
    if architecture != "llama":
        raise ValueError(f"GGUF architecture {architecture} is not supported; supported: llama")
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(f"llama.rope.scaling.type {scaling} is not supported in GGUF files")
    num_layers = int(fields["llama.block_count"])
    num_qo_heads = int(fields["llama.attention.head_count"])
    hidden_size = int(fields["llama.embedding_length"])
    head_dim = int(fields.get("llama.attention.key_length", hidden_size // num_qo_heads))
    if fields.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise ValueError(
            f"llama.rope.dimension_count must equal head_dim {head_dim}, "
            f"got {fields['llama.rope.dimension_count']}"
        )
    eos_ids = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=int(fields["llama.feed_forward_length"]),
        num_layers=num_layers,
        num_qo_heads=num_qo_heads,
        num_kv_heads=int(fields.get("llama.attention.head_count_kv", num_qo_heads)),
        head_dim=head_dim,
        max_position=int(fields["llama.context_length"]),
        rms_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(fields.get("llama.rope.freq_base", 10000.0)),
        rope_scaling=None,
        windows=(None,) * num_layers,
        tied=tied,
        eos_ids=tuple(int(i) for i in dict.fromkeys(eos_ids) if i is not None),
    )


def _refuse_unsupported(config: Json) -> None:
    if config.get("quantization_config"):
        raise ValueError("quantization_config is not supported; use an unquantised checkpoint")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation} is not supported; supported: silu")


def _rope_parameters(config: Json) -> Json:
    """One mapping from both spellings: `rope_parameters`, or `rope_theta` with `rope_scaling`."""
    rope = {"rope_theta": config.get("rope_theta", 10000.0)}
    rope |= config.get("rope_scaling") or {}
    rope |= config.get("rope_parameters") or {}
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ValueError(f"partial_rotary_factor must be 1, got {partial}")
    return rope


def _rope_scaling(rope: Json) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not supported; supported: default, llama3")
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_position=int(rope["original_max_position_embeddings"]),
    )


def _windows(config: Json, architecture: str) -> tuple[int | None, ...]:
    num_layers = int(config["num_hidden_layers"])
    window = config.get("sliding_window")
    if architecture.startswith("Qwen") and not config.get("use_sliding_window", False):
        window = None
    if window is None:
        return (None,) * num_layers
    first_windowed = config.get("max_window_layers", 0) if architecture.startswith("Qwen") else 0
    default = ["full_attention"] * first_windowed
    default += ["sliding_attention"] * (num_layers - first_windowed)
    kinds = config.get("layer_types") or default[:num_layers]
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"layer type {sorted(unknown)[0]} is not supported")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _eos_ids(config: Json, generation: Json) -> tuple[int, ...]:
    ids = generation.get("eos_token_id", config.get("eos_token_id"))
    if ids is None:
        return ()
    return tuple(int(i) for i in ids) if isinstance(ids, list) else (int(ids),)
