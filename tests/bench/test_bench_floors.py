# SPDX-License-Identifier: Apache-2.0
"""Floors by hand, and the ceilings that they rest on."""

from __future__ import annotations

import pytest
import torch

from bench import calibrate, floors
from bench.calibrate import Calibration, Ceiling, available_isas, forced_isa, spend
from bench.floors import Floor, Rates
from bench.models import Model
from bench.timing import Effort, Timing

MODEL = Model("toy", num_qo_heads=4, num_kv_heads=2, head_dim=8, num_layers=1)
TREE = [-1, 0, 0]  # sees 1 + 2 + 2 nodes


def test_attention_bound_by_operations() -> None:
    rates = Rates(fp32_gflops=1.0, bf16_gflops=2.0, read_gbs=1.0)
    # 3 nodes x 10 context tokens + 5; q and out 3 x 4 x 8, K and V 13 x 2 x 8
    flops, num_bytes = 4 * 8 * 4 * 35, (2 * 3 * 4 * 8 + 2 * 13 * 2 * 8) * 4
    assert floors.attention(MODEL, 10, TREE, "fp32", rates) == Floor(
        flops, num_bytes, pytest.approx(flops / 1e3), "flops"
    )
    bf16 = floors.attention(MODEL, 10, TREE, "bf16", rates)
    assert bf16 == Floor(flops, num_bytes / 2, pytest.approx(flops / 2e3), "flops")


def test_attention_bound_by_bytes() -> None:
    rates = Rates(fp32_gflops=100.0, bf16_gflops=100.0, read_gbs=1.0)
    floor = floors.attention(MODEL, 0, TREE, "fp32", rates)
    assert floor.bound == "bytes" and floor.us == pytest.approx(4 * (192 + 96) / 1e3)


def test_traffic() -> None:
    floor = floors.traffic(4e6, Rates(1.0, 1.0, 40.0))
    assert floor == Floor(0.0, 4e6, pytest.approx(100.0), "bytes")


@pytest.mark.parametrize(("isa", "lanes"), [("portable", 48), ("avx2", 96), ("avx512", 192)])
def test_the_calibration_kernel_counts_its_operations(isa: str, lanes: int) -> None:
    if isa not in available_isas():
        pytest.skip(f"this CPU has no {isa}")
    with forced_isa(isa):
        assert spend(False, 1000, 1) == 2 * lanes * 1000
        assert spend(False, 1000, 3) == 3 * 2 * lanes * 1000
        assert spend(True, 1000, 1) == 0  # no bf16 dot product


def test_the_bf16_dot_counts_twice() -> None:
    if "avx512_bf16" not in available_isas():
        pytest.skip("this CPU has no avx512_bf16")
    with forced_isa("avx512_bf16"):
        assert spend(True, 1000, 1) == 2 * spend(False, 1000, 1) == 4 * 192 * 1000


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_the_read_kernel_reads_every_float(isa: str, count: int) -> None:
    data, sums = torch.arange(2 * count, dtype=torch.float32).view(2, -1), torch.zeros(2)
    with forced_isa(isa):
        torch.ops.treeattn._calibrate_read(data, sums)
    assert sums.tolist() == data.double().sum(1).tolist()


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="sums"):
        torch.ops.treeattn._calibrate_read(torch.zeros(2, 8), torch.zeros(3))
    with pytest.raises(ValueError, match="flops"):
        torch.ops.treeattn._calibrate_flops(False, 1, torch.zeros(2))


def ceilings(dot_spread: float | None = None, **spreads: float) -> Calibration:
    made = Calibration("best", "cpu", 2, "torch", 1, "words")
    made.fma = {"best": {2: Ceiling(100.0, spreads.get("fma", 0.0), True)}}
    made.read = {2: Ceiling(10.0, spreads.get("read", 0.0), True)}
    if dot_spread is not None:
        made.dot = {"best": {2: Ceiling(200.0, dot_spread, True)}}
    return made


def test_bf16_takes_the_fp32_rate_where_there_is_no_dot_product() -> None:
    assert ceilings().rates(2) == Rates(100.0, 100.0, 10.0)
    assert ceilings(dot_spread=0.0).rates(2) == Rates(100.0, 200.0, 10.0)


def test_only_the_ceiling_that_set_the_floor_must_be_steady() -> None:
    compute, memory = Floor(1, 1, 1, "flops"), Floor(1, 1, 1, "bytes")
    assert not ceilings(fma=0.2).steady(compute, "fp32", 2)
    assert ceilings(fma=0.2).steady(memory, "fp32", 2)
    assert not ceilings(read=0.2).steady(memory, "fp32", 2)
    assert not ceilings(dot_spread=0.2).steady(compute, "bf16", 2)
    assert ceilings(dot_spread=0.2).steady(compute, "fp32", 2)


@pytest.mark.parametrize(("best_us", "valid"), [(10.0, True), (20.0, False)])
def test_two_threads_that_share_a_core_are_no_ceiling(
    monkeypatch: pytest.MonkeyPatch, best_us: float, valid: bool
) -> None:
    def compare(works: object, *, threads: int, effort: Effort) -> dict[str, Timing]:
        us = best_us if threads == 2 else 10.0
        return {"": Timing(us, us, us, us, 3, 0.0, True)}

    monkeypatch.setattr(calibrate, "compare", compare)
    monkeypatch.setattr(calibrate, "spend", lambda dots, rounds, threads: 1e6 * threads)
    rates: dict[int, Ceiling] = {}
    for threads in (1, 2):
        calibrate._add_flops(rates, False, threads, Effort(0.1, 0.1))
    assert rates[1] == Ceiling(100.0, 0.0, True)
    assert rates[2] == Ceiling(2000.0 / best_us, 0.0, valid)
