# SPDX-License-Identifier: Apache-2.0
"""The committed cost table is what the module prints; its arithmetic against known floors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from treeattn.cost_file import CostTables

from bench import h200_costs as h200

FILE = Path(__file__).resolve().parents[2] / "bench" / "costs" / "llama3_8b_h200.json"
LLAMA = h200.TARGETS["llama3-8b"]


def test_the_committed_file_is_what_the_module_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert h200.main([]) == 0
    assert capsys.readouterr().out == FILE.read_text("utf-8")


@pytest.mark.parametrize(
    ("batch_size", "context", "nodes", "kv_mb", "qo_mb", "memory_us", "mma_us"),
    [
        (1, 1024, 64, 4.5, 1.05, 1.3, 1.4),
        (1, 1024, 1024, 8.4, 16.78, 5.9, 22.0),
        (1, 8192, 256, 34.6, 4.19, 9.0, 43.6),
        (8, 1024, 256, 41.9, 33.55, 17.6, 43.9),
        (64, 8192, 16, 2151.7, 16.78, 504.3, 174.6),
        (64, 32768, 64, 8606.7, 67.11, 2017.2, 2791.2),
    ],
)
def test_attention_of_a_layer(
    batch_size: int,
    context: int,
    nodes: int,
    kv_mb: float,
    qo_mb: float,
    memory_us: float,
    mma_us: float,
) -> None:
    """Worked out apart from this code, to the digits shown."""
    layer = h200.attention(
        LLAMA.model, batch_size=batch_size, context=context, rows=batch_size * nodes
    )
    assert round(layer.kv_bytes / 1e6, 1) == kv_mb
    assert round(layer.qo_bytes / 1e6, 2) == qo_mb
    moved = layer.kv_bytes + layer.qo_bytes
    assert round(1e6 * moved / h200.H200.bytes_per_s, 1) == memory_us
    assert round(1e6 * layer.flops / h200.H200.flops_per_s, 1) == mma_us
    assert 1e6 * layer.seconds(h200.H200) == pytest.approx(max(memory_us, mma_us, 2.5), abs=0.06)


def test_a_whole_step() -> None:
    """Weights 16 GB / 4.3 TB/s = 3.7 ms; 4096 rows x 16 GFLOP = 83 ms; attention 32 x 10.9 us."""
    assert round(1e3 * h200.linear_s(LLAMA.params, 1), 1) == 3.7
    assert round(1e3 * h200.linear_s(LLAMA.params, 4096)) == 83
    step = h200.verify_s(LLAMA, batch_size=1, context=8192, rows=64)
    assert 1e6 * (step - h200.linear_s(LLAMA.params, 64)) == pytest.approx(349, abs=1)


def test_accept_and_remap() -> None:
    """Eight rows of 128,256 bf16 logits: 0.48 us each request, 31 us for 64; never below a launch.
    Eight accepted rows of KV: 0.49 us, 31 us for 64."""
    assert 1e6 * h200.accept_s(LLAMA, batch_size=1, rows=64) == pytest.approx(2.5)
    assert round(1e6 * h200.accept_s(LLAMA, batch_size=64, rows=1024)) == 31
    assert 1e6 * h200.remap_s(LLAMA, batch_size=1, rows=64) == pytest.approx(2.5)
    assert round(1e6 * h200.remap_s(LLAMA, batch_size=64, rows=1024)) == 31


def test_a_layer_of_llama() -> None:
    """32 layers, input and output embedding: 8.03e9 parameters."""
    assert LLAMA.layer_params * 32 + 2 * 4096 * 128_256 == pytest.approx(8.03e9, rel=1e-3)


def test_what_does_not_fit_is_left_out() -> None:
    """64 x 32k tokens of 131 kB: 275 GB."""
    assert CostTables.load(FILE, batch_size=64).max_context == 8192
    assert CostTables.load(FILE, batch_size=1).max_context == 32768


def test_every_table_is_called_assumed() -> None:
    for size in json.loads(FILE.read_text("utf-8"))["batches"]:
        tables = CostTables.load(FILE, batch_size=int(size))
        for name in ("verify", "draft", "accept", "remap"):
            assert getattr(tables, name) and tables.source(name) == "assumed"
