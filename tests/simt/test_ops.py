# SPDX-License-Identifier: Apache-2.0
"""Ops on the emulator: the same bits in every order, and no more bytes moved than there are."""

from __future__ import annotations

import math

import pytest
import torch
import treeattn
from support import simt
from torch import Tensor

NUM_NODES, NUM_HEADS, HEAD_DIM = 37, 3, 64


def write_kv(dtype: torch.dtype, pool_dtype: torch.dtype, shift: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = 2, NUM_NODES, NUM_HEADS, HEAD_DIM + shift
    k, v = torch.randn(shape, generator=generator).to(dtype)[..., shift:]
    caches = [torch.zeros(13, 4, NUM_HEADS, HEAD_DIM, dtype=pool_dtype) for _ in range(2)]
    slots = torch.randperm(13 * 4, generator=generator)[:NUM_NODES]
    slots[5] = -1
    treeattn.write_kv(k, v, *caches, slots)
    return caches[0], caches[1]


def merge_states(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outs = torch.randn(2, NUM_NODES, NUM_HEADS, HEAD_DIM, generator=generator).to(dtype)
    lses = torch.randn(2, NUM_NODES, NUM_HEADS, generator=generator)
    lses[0, 3], lses[1, 4], lses[:, 5] = -math.inf, -math.inf, -math.inf
    return treeattn.merge_states(outs[0], lses[0], outs[1], lses[1])


@pytest.mark.parametrize("pool_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_write_kv_in_every_order(pool_dtype: torch.dtype) -> None:
    simt.assert_same_in_every_order(lambda: write_kv(torch.bfloat16, pool_dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_merge_states_in_every_order(dtype: torch.dtype) -> None:
    simt.assert_same_in_every_order(lambda: merge_states(dtype))


def counted(run: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    simt.use(monkeypatch, "forward")
    simt.take_counters()
    assert callable(run)
    run()
    return simt.take_counters()


@pytest.mark.parametrize("shift", [0, 1], ids=["wide", "narrow"])
def test_write_kv_moves_each_byte_once(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(lambda: write_kv(torch.bfloat16, torch.bfloat16, shift), monkeypatch)
    row_bytes = 2 * NUM_HEADS * HEAD_DIM
    assert seen["global_bytes_written"] == 2 * (NUM_NODES - 1) * row_bytes
    packs = row_bytes // (2 if shift else 16)
    threads = 2 * NUM_NODES * min(128, 1 << (packs - 1).bit_length())  # each reads its slot
    assert seen["global_bytes_read"] == 2 * (NUM_NODES - 1) * row_bytes + 8 * threads
    assert seen["launches"] == 1 and seen["barriers"] == 0


def test_merge_states_moves_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(lambda: merge_states(torch.bfloat16), monkeypatch)
    row_bytes, num_rows = 2 * HEAD_DIM, NUM_NODES * NUM_HEADS
    assert seen["global_bytes_written"] == num_rows * (row_bytes + 4)
    # Two nodes have one empty state and one has two: those are not read.
    num_states = 2 * num_rows - (1 + 1 + 2) * NUM_HEADS
    threads = num_rows * row_bytes // 16
    assert seen["global_bytes_read"] == num_states * row_bytes + 2 * 4 * threads
    assert seen["launches"] == 1 and seen["barriers"] == 0


def test_an_unknown_order_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, "sideways")
    with pytest.raises(Exception, match="TREEATTN_SIMT_ORDER must be forward"):
        merge_states(torch.float32)
