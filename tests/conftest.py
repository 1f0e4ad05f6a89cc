# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test shares."""

from __future__ import annotations

import pytest
import treeattn
from support.attention import AttentionCase


@pytest.fixture(params=["cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each machine that runs the ops; one test body serves them all."""
    return str(request.param)


@pytest.fixture(params=["portable", "avx2", "avx512", "avx512_bf16"])
def cpu_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set that this CPU has, one after the other."""
    monkeypatch.setenv("TREEATTN_CPU_ISA", request.param)
    x = AttentionCase("", trees=(1,), context_lens=(0,)).make("cpu")
    try:
        treeattn.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    except ValueError as error:
        if "is not supported by this CPU" not in str(error):
            raise
        pytest.skip(str(error))
    return str(request.param)
