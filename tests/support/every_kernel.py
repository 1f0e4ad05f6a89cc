# SPDX-License-Identifier: Apache-2.0
"""Launch every CUDA kernel on the emulator, each at the most shared memory that it asks for.

As a program, `TREEATTN_SIMT_LAUNCHES=FILE python -m support.every_kernel` lets the emulator note
each launch in FILE; tools/kernel_resources.py reads from there what a CTA of a kernel takes.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch
import treeattn
from torch import Tensor

from support import simt
from support.acceptance import plan_of
from support.attention import AttentionCase
from support.remap import Case, make

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FP8 = torch.float8_e4m3fn
VOCAB_SIZE = 151_936  # accept_path's shared memory grows with the vocabulary; this is a large one
HEAD_DIMS = (64, 128, 256)  # what tree_attention's kernels are made for
ALL_ROWS, WALK = 2, 64  # rows: with no depth, the cost rule reads few at once, many one by one


def run() -> None:
    """Every kernel of every op, at every element type and option that has a kernel of its own."""
    for dtype in DTYPES:
        for wide in (True, False):
            write_kv(dtype, dtype, wide)
            write_kv(dtype, FP8, wide)
            merge_states(dtype, wide)
        for rows in (ALL_ROWS, WALK):
            accept_path(dtype, rows, "greedy")
            accept_path(dtype, rows, "target")
        accept_by_trials(dtype)
        for head_dim in HEAD_DIMS:
            for pool_dtype in (dtype, FP8):
                for window in (None, 8):
                    tree_attention(dtype, pool_dtype, head_dim, window)
    for num_layers in (1, 45):  # up to 88 planes, and more
        batch = make(Case("", sizes=(5,), num_layers=num_layers), seed=0)
        treeattn.remap_kv(**batch.arguments())


def write_kv(dtype: torch.dtype, pool_dtype: torch.dtype, wide: bool) -> None:
    head_dim = 64 if wide else 5
    rows = torch.zeros(3, 2, head_dim, dtype=dtype)
    caches = [torch.zeros(1, 4, 2, head_dim, dtype=pool_dtype) for _ in range(2)]
    treeattn.write_kv(rows, rows, *caches, torch.arange(3))


def merge_states(dtype: torch.dtype, wide: bool) -> None:
    out, lse = torch.zeros(3, 2, 64 if wide else 5, dtype=dtype), torch.zeros(3, 2)
    treeattn.merge_states(out, lse, out, lse)


def accept_path(dtype: torch.dtype, num_rows: int, rule: str) -> None:
    """One request of one node; the other rows belong to nobody, and are read by nobody."""
    logits = torch.zeros(num_rows, VOCAB_SIZE, dtype=dtype)
    sampling = {"seeds": 0, "temperature": 1.0, "top_p": 0.9} if rule == "target" else {}
    treeattn.accept_path(
        logits,
        torch.zeros(num_rows, dtype=torch.int64),
        plan_of([[-1]], max_depth=0, capacity=num_rows),
        rule=rule,
        return_logprobs=True,
        **sampling,
    )


def accept_by_trials(dtype: torch.dtype) -> None:
    logits, draft = torch.zeros(2, VOCAB_SIZE, dtype=dtype), torch.full((2, 8), 1 / 8)
    treeattn.accept_path(
        logits, torch.tensor([0, 1]), plan_of([[-1, 0]]), rule="multistep", seeds=0,
        draft_probs=draft, draft_ids=torch.arange(8),
        counts=torch.zeros(2, 1, 1, dtype=torch.int64),
    )  # fmt: skip


def tree_attention(
    dtype: torch.dtype, pool_dtype: torch.dtype, head_dim: int, window: int | None
) -> None:
    x = AttentionCase("", trees=(3,), context_lens=(5,), head_dim=head_dim, dtype=dtype).make("cpu")
    caches: list[Tensor] = [cache.to(pool_dtype) for cache in (x.k_cache, x.v_cache)]
    treeattn.tree_attention(x.q, *caches, x.plan, window=window)


if __name__ == "__main__":
    if "TREEATTN_SIMT_LAUNCHES" not in os.environ:
        sys.exit("every_kernel: TREEATTN_SIMT_LAUNCHES must name the file for the launches")
    if simt.module() is None:
        sys.exit(f"every_kernel: {simt.MISSING}")
    with pytest.MonkeyPatch.context() as patch:
        simt.use(patch, "forward")
        run()
