# SPDX-License-Identifier: Apache-2.0
"""Tiny random Llama models, and drafters that follow a script."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from treeattn.decoder import Decoder, ModelConfig, Request, Tokenizer
from treeattn.decoder.cache import PagedCache
from treeattn.decoder.checkpoint import Checkpoint
from treeattn.decoder.engine import Engine
from treeattn.decoder.model import build_model
from treeattn.decoder.sampling import Sampling
from treeattn.plan import plan_tree
from treeattn.schedule import Fixed
from treeattn.tree import DraftTree

CHARACTERS = string.ascii_letters + string.digits + "+/"

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position=256,
    rms_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    windows=(None, None),
    tied=False,
    eos_ids=(),
)

# The same as a checkpoint's config.json has it.
LLAMA_CONFIG = {
    "architectures": [CONFIG.architecture],
    "vocab_size": CONFIG.vocab_size,
    "hidden_size": CONFIG.hidden_size,
    "intermediate_size": CONFIG.intermediate_size,
    "num_hidden_layers": CONFIG.num_layers,
    "num_attention_heads": CONFIG.num_qo_heads,
    "num_key_value_heads": CONFIG.num_kv_heads,
    "head_dim": CONFIG.head_dim,
    "max_position_embeddings": CONFIG.max_position,
    "rms_norm_eps": CONFIG.rms_eps,
    "rope_theta": CONFIG.rope_theta,
}


def tiny_decoder(
    *,
    seed: int = 0,
    block_size: int = 4,
    num_blocks: int | None = None,
    tokenizer: Tokenizer | None = None,
    weights: dict[str, torch.Tensor] | None = None,
    **overrides: object,
) -> Decoder:
    """A decoder over `weights`, else random ones; `overrides` are fields of the config."""
    config = replace(CONFIG, **overrides)
    checkpoint = Checkpoint(config, weights or random_weights(config, seed), tokenizer)
    model = build_model(checkpoint, torch.device("cpu"))
    return Decoder(model, tokenizer, block_size=block_size, num_blocks=num_blocks)


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 2 / shape[-1] ** 0.5

    weights = {
        "model.embed_tokens.weight": normal(config.vocab_size, config.hidden_size),
        "model.norm.weight": torch.ones(config.hidden_size),
        "lm_head.weight": normal(config.vocab_size, config.hidden_size),
    }
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        for name, rows in (
            ("q", config.num_qo_heads),
            ("k", config.num_kv_heads),
            ("v", config.num_kv_heads),
        ):
            weight = normal(rows * config.head_dim, config.hidden_size)
            weights[f"{layer}self_attn.{name}_proj.weight"] = weight
        q_rows = config.num_qo_heads * config.head_dim
        weights |= {
            f"{layer}self_attn.o_proj.weight": normal(config.hidden_size, q_rows),
            f"{layer}mlp.gate_proj.weight": normal(config.intermediate_size, config.hidden_size),
            f"{layer}mlp.up_proj.weight": normal(config.intermediate_size, config.hidden_size),
            f"{layer}mlp.down_proj.weight": normal(config.hidden_size, config.intermediate_size),
            f"{layer}input_layernorm.weight": torch.ones(config.hidden_size),
            f"{layer}post_attention_layernorm.weight": torch.ones(config.hidden_size),
        }
    return weights


def char_tokenizer(num_tokens: int = 60, swap: tuple[int, int] | None = None) -> Tokenizer:
    """A token per character, ids in the order of `CHARACTERS`; `swap` exchanges two ids."""
    tokenizers = pytest.importorskip("tokenizers")
    ids = list(range(num_tokens))
    if swap is not None:
        ids[swap[0]], ids[swap[1]] = swap[1], swap[0]
    vocab = {CHARACTERS[i]: ids[i] for i in range(num_tokens)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=CHARACTERS[0]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(backend)


def plain(decoder: Decoder, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Plain greedy decoding, running past end tokens."""
    return decoder.generate(
        [prompt], max_new_tokens=num_tokens, drafter="none", num_nodes=1, ignore_eos=True
    )[0].tokens


def chain_logits(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """Logits [len(tokens), V] of one forward pass over a chain."""
    cache = decoder._allocate(len(tokens))
    cache.pool.create(0, tokens)
    num_tokens = len(tokens)
    plan = plan_tree(
        torch.arange(-1, num_tokens - 1),
        torch.tensor([0, num_tokens]),
        torch.tensor([0]),
        torch.tensor([cache.pool.block_table(0)]),
        block_size=cache.block_size,
        num_qo_heads=decoder.config.num_qo_heads,
        num_kv_heads=decoder.config.num_kv_heads,
    )
    with torch.inference_mode():
        logits, _ = decoder.model.forward(torch.tensor(tokens), plan, cache.k, cache.v)
    return logits


class Scripted:
    """Drafts what `script` says for a request; records the committed length after each step."""

    def __init__(self, script: Callable[[Request], DraftTree | None]) -> None:
        self._script = script
        self.cache: PagedCache | None = None
        self.context_lens: list[int] = []

    def propose(
        self, requests: Sequence[Request], num_nodes: int, shape: str
    ) -> list[DraftTree | None]:
        return [self._script(request) for request in requests]

    def observe(self, request: Request, tokens: Sequence[int]) -> None:
        if self.cache is not None:
            self.context_lens.append(self.cache.pool.context_len(request.seq))

    def release(self, request: Request) -> None:
        pass


def start(decoder: Decoder, prompt: Sequence[int], drafter: Scripted, limit: int = 64) -> Engine:
    """An engine with one request, its prompt read and no step taken yet."""
    cache = decoder._allocate(64)
    drafter.cache = cache
    engine = Engine(decoder.model, cache, drafter, Sampling(), Fixed(64))
    engine.add(Request(seq=0, tokens=list(prompt), limit=limit))
    return engine


def logical_kv(cache: PagedCache, seq: int, num_slots: int) -> torch.Tensor:
    """[2, L, num_slots, heads, head_dim]: K and V of the first logical slots of a sequence."""
    table = torch.tensor(cache.pool.block_table(seq), dtype=torch.int64)
    return torch.stack([pool[:, table].flatten(1, 2)[:, :num_slots] for pool in (cache.k, cache.v)])


def random_tree(
    rng: np.random.Generator, root: int, truth: Sequence[int], num_nodes: int, vocab_size: int
) -> DraftTree:
    """A random tree in which each node continues the true path with probability 0.7."""
    tokens, parents, depths, on_path = [root], [-1], [0], [True]
    for node in range(1, num_nodes):
        parent = int(rng.integers(node))
        depth = depths[parent] + 1
        right = on_path[parent] and depth <= len(truth) and bool(rng.random() < 0.7)
        token = truth[depth - 1] if right else int(rng.integers(vocab_size))
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
        on_path.append(on_path[parent] and depth <= len(truth) and token == truth[depth - 1])
    return DraftTree(tokens, parents)
