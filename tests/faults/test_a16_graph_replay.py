# SPDX-License-Identifier: Apache-2.0
"""A16: a graph captured once serves every later step: trees, lengths, tables, tokens and real sizes
are read from device memory at replay, never from what the host saw at capture.

The emulator captures launches with their parameters by value, as CUDA does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

import pytest
import torch
import treeattn
from support.graph import capture
from support.logical import same_bits
from support.paged import random_block_table
from support.trees import pack_parents, random_parents
from torch import Tensor

MACHINES = "device"

NUM_REQUESTS, MOST_NODES, VOCAB, BLOCK_SIZE, NUM_BLOCKS, MOST_BLOCKS = 2, 8, 500, 4, 64, 20
CAPACITY = NUM_REQUESTS * MOST_NODES
NUM_LAYERS, NUM_QO_HEADS, NUM_KV_HEADS, HEAD_DIM = 2, 6, 2, 64
SIZES = [(8, 8), (1, 8), (3, 2), (8, 1), (1, 1), (0, 5), (0, 0)]
OPTIONS = {
    "greedy": {},
    "target": {"rule": "target", "temperature": 0.7, "top_k": 20, "top_p": 0.9, "seeds": 11},
    # The draft's logits are the target's at another temperature.
    "traversal": {
        "rule": "traversal", "draws": "iid", "temperature": 0.7, "seeds": 11,
        "draft_logits": "logits",
    },
    "typical": {"rule": "typical", "seeds": 11, "typical_epsilon": 0.01},
}  # fmt: skip


@dataclass(frozen=True)
class Buffers:
    """Everything that a graph reads or writes, at one size for all steps."""

    parents: Tensor
    node_indptr: Tensor
    context_lens: Tensor
    block_table: Tensor
    tokens: Tensor
    q: Tensor  # [layers, N, num_qo_heads, head_dim]
    kv: Tensor  # [layers, 2, N, num_kv_heads, head_dim]
    logits: Tensor
    k_caches: Tensor
    v_caches: Tensor

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, other: Buffers) -> None:
        for mine, its in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(its)

    def clone(self) -> Buffers:
        return Buffers(*(tensor.clone() for tensor in self.tensors()))


def make(sizes: tuple[int, int], seed: int, dtype: torch.dtype, device: str) -> Buffers:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    trees = [random_parents(rng, size) if size else [] for size in sizes]
    parents, node_indptr = pack_parents(trees, capacity=CAPACITY)
    context_lens = [rng.randrange(60) for _ in sizes]
    slots = [length + size for length, size in zip(context_lens, sizes, strict=True)]
    table = random_block_table(rng, slots, BLOCK_SIZE, num_blocks=NUM_BLOCKS, spare_columns=0)
    wide_table = torch.full((NUM_REQUESTS, MOST_BLOCKS), 2**30, dtype=torch.int32)
    wide_table[:, : table.shape[1]] = table
    pool = NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM
    logits = randn(CAPACITY, VOCAB)
    tokens = torch.randint(VOCAB, (CAPACITY,), generator=generator)
    # Drafts that the target likes, so that paths are long and rows move.
    for b, tree in enumerate(trees):
        begin = int(node_indptr[b])
        for node, parent in enumerate(tree):
            if parent >= 0 and rng.random() < 0.8:
                logits[begin + parent, tokens[begin + node]] = 9.0
    on_host = Buffers(
        parents,
        node_indptr,
        torch.tensor(context_lens, dtype=torch.int32),
        wide_table,
        tokens,
        randn(NUM_LAYERS, CAPACITY, NUM_QO_HEADS, HEAD_DIM),
        randn(NUM_LAYERS, 2, CAPACITY, NUM_KV_HEADS, HEAD_DIM),
        logits,
        randn(*pool),
        randn(*pool),
    )
    return Buffers(*(tensor.to(device) for tensor in on_host.tensors()))


def verify_and_commit(b: Buffers, options: dict[str, object]) -> dict[str, Tensor]:
    """One step of the target model, without the model; all that it computes, by name."""
    plan = treeattn.plan_tree(
        b.parents,
        b.node_indptr,
        b.context_lens,
        b.block_table,
        block_size=BLOCK_SIZE,
        num_qo_heads=NUM_QO_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        max_depth=MOST_NODES - 1,
    )
    results = {"depths": plan.depths, "positions": plan.positions, "plan_status": plan.status}
    for layer in range(NUM_LAYERS):
        caches = b.k_caches[layer], b.v_caches[layer]
        treeattn.write_kv(*b.kv[layer], *caches, plan.slot_mapping)
        out, lse = treeattn.tree_attention(b.q[layer], *caches, plan, return_lse=True)
        results |= {f"out[{layer}]": out, f"lse[{layer}]": lse}
    given = {name: b.logits if value == "logits" else value for name, value in options.items()}
    accepted = treeattn.accept_path(b.logits, b.tokens, plan, **given)
    moved = treeattn.remap_kv(b.k_caches, b.v_caches, plan, accepted)
    results |= {name: x for name, x in vars(accepted).items() if x is not None}
    return results | {"moved": moved}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_replay_equals_the_eager_step(
    dtype: torch.dtype, options: dict[str, object], machine: str, device: str
) -> None:
    static = make((2, 3), 99, dtype, device)
    results, replay = capture(machine, lambda: verify_and_commit(static, options))
    num_accepted = num_moved = 0
    for step, sizes in enumerate(SIZES):
        inputs = make(sizes, step, dtype, device)
        eager = inputs.clone()
        expected = verify_and_commit(eager, options)
        static.take(inputs)
        replay()
        for name, want in expected.items():
            # Depths and positions of rows that belong to nobody are not written.
            rows = slice(sum(sizes) if name in ("depths", "positions") else None)
            assert same_bits(results[name][rows], want[rows]), (sizes, name)
        for field, got, want in zip(fields(static), static.tensors(), eager.tensors(), strict=True):
            assert same_bits(got, want), (sizes, field.name)
        assert results["status"].tolist() == [0 if size else 3 for size in sizes]
        num_accepted += int(results["num_accepted"].sum())
        num_moved += int(results["moved"].sum())
    assert num_accepted > 0 and num_moved > 0


def test_lengths_of_the_capture_make_a_replay_differ(machine: str, device: str) -> None:
    """The comparison above can fail: here the graph reads context lengths that never change."""
    static = make((8, 8), 0, torch.float32, device)
    stale = replace(static, context_lens=static.context_lens.clone())
    results, replay = capture(machine, lambda: verify_and_commit(stale, {}))
    inputs = make((8, 8), 1, torch.float32, device)
    expected = verify_and_commit(inputs.clone(), {})
    static.take(inputs)
    replay()
    assert not same_bits(results["positions"], expected["positions"])
