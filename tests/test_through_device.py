# SPDX-License-Identifier: Apache-2.0
"""The stand-in by which tests with host tensors run on a GPU, tried on the emulator."""

from __future__ import annotations

import pytest
import torch
import treeattn
from support import simt
from support.attention import AttentionCase
from support.logical import same_bits
from support.through_device import ThroughDevice
from treeattn import _namespace


def test_views_keep_strides_and_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, "forward")
    x = AttentionCase("", trees=(20,), context_lens=(30,)).make("cpu")
    pool = torch.stack([x.k_cache, x.v_cache], dim=1)
    wide = torch.zeros(x.q.shape[0], x.q.shape[1] + 3, x.q.shape[2])
    query = wide[:, 1:-2].copy_(x.q)
    expected, lse = treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan, return_lse=True)
    calls = []

    class Recording:
        def __getattr__(self, name: str) -> object:
            calls.append(name)
            return getattr(torch.ops.treeattn_simt, name)

    monkeypatch.setattr(_namespace, "ops", ThroughDevice(Recording(), "cpu"))
    out = torch.full_like(wide, 5.0)[:, 2:-1]
    treeattn.tree_attention(query, pool[:, 0], pool[:, 1], x.plan, out=out)
    assert same_bits(out, expected)
    rows = torch.randn(2, 20, 2, 64)
    slots = torch.arange(20)
    treeattn.write_kv(rows[0], rows[1], pool[:, 0], pool[:, 1], slots)
    assert same_bits(pool[slots // 16, 0, slots % 16], rows[0])
    assert same_bits(pool[slots // 16, 1, slots % 16], rows[1])
    assert calls == ["tree_attention", "write_kv"] and lse is not None


def test_errors_pass_through_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, "forward")
    monkeypatch.setattr(_namespace, "ops", ThroughDevice(torch.ops.treeattn_simt, "cpu"))
    cache = torch.zeros(2, 4, 1, 8)
    with pytest.raises(ValueError, match="write_kv: v must"):
        treeattn.write_kv(torch.ones(1, 1, 8), torch.ones(2, 1, 8), cache, cache, torch.arange(1))
    assert cache.count_nonzero() == 0
