# SPDX-License-Identifier: Apache-2.0
"""bench.gpu without a GPU: what it says, what it would measure, its peers and its report."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from treeattn import _library

from bench import cuda_problem, cuda_timing, floors, gpu, trees
from bench.cuda_timing import Ceilings, Turns
from bench.models import Model
from bench.peers import cuda as peers
from bench.problem import Case
from bench.timing import Timing

ROOT = Path(__file__).resolve().parents[2]
TOY = Model("toy", num_qo_heads=4, num_kv_heads=2, head_dim=16, num_layers=2)
CEILINGS = Ceilings("toy", l2_bytes=1000, copy_gbs=1000.0, gemm_tflops=100.0, launch_us=1.0)


def fake_compare(works: Mapping[str, Turns]) -> tuple[dict[str, Timing], dict[str, str]]:
    """Runs everything once per data set; each takes as many us as its name has letters."""
    times = {}
    for name, turns in works.items():
        for i in range(turns.sets):
            turns.run(i)
        us = float(len(name))
        times[name] = Timing(us, us, us, us, 1, None, True)
    return times, {}


@pytest.fixture
def toy_jobs(monkeypatch: pytest.MonkeyPatch) -> list[gpu.Job]:
    jobs = [
        gpu.Job("A2", Case(TOY, 20, "eagle-16", "bf16"), 2),
        *(gpu.Job("C1", Case(TOY, 0, f"{kind}-32", "bf16"), 2) for kind in ("star", "chain")),
    ]
    monkeypatch.setattr(cuda_timing, "compare", fake_compare)
    monkeypatch.setattr(peers, "PEERS", {"sdpa_packed": peers.PEERS["sdpa_packed"]})
    return jobs


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so() -> None:
    """In a checkout, whether the package is installed or not."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "bench.gpu", "--quick"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == "" and done.stderr == "bench.gpu: needs a GPU: torch sees none\n"


def test_every_item_has_cases_and_quick_ones() -> None:
    jobs = gpu.jobs()
    assert {job.item for job in jobs} == {job.item for job in jobs if job.quick} == set(gpu.ITEMS)
    assert len({(job.item, job.case, job.batch) for job in jobs}) == len(jobs)


def test_sets_exceed_four_times_l2_and_calls_are_whole_rounds() -> None:
    assert cuda_timing.cold_sets(10e6, 50_000_000) == 21
    assert cuda_timing.cold_sets(1e9, 50_000_000) == 1
    assert cuda_timing.cold_sets(1.0, 50_000_000) == cuda_timing.MAX_SETS
    assert [cuda_timing.calls_of(sets) for sets in (1, 5, 16, 21)] == [16, 20, 16, 21]


@pytest.mark.parametrize("tree", ["eagle-16", "chain-9", "star-40"])
@pytest.mark.parametrize("ctx", [0, 37])
def test_ours_and_sdpa_agree_with_fp64(tree: str, ctx: int) -> None:
    _library.require()
    x = cuda_problem.build(Case(TOY, ctx, tree, "bf16", pools=2), 3, "cpu")
    import treeattn

    assert gpu.check(x, lambda i: treeattn.tree_attention(x.q, *x.pools[i], x.plan)) < 1e-2
    assert gpu.check(x, peers.PEERS["sdpa_packed"][1](x)) < 2e-2


def test_a_wrong_or_failing_peer_is_left_out(toy_jobs: list[gpu.Job]) -> None:
    def wrong(x: cuda_problem.Batch) -> peers.Run:
        return lambda pool: torch.zeros_like(x.q)

    def failing(x: cuda_problem.Batch) -> peers.Run:
        raise RuntimeError("no kernel for this shape")

    peers.PEERS["wrong"] = ("torch", wrong)
    peers.PEERS["failing"] = ("torch", failing)
    peers.PEERS["absent"] = ("no_such_package", failing)
    row = gpu.measure(toy_jobs[0], CEILINGS, "cpu")
    assert row.peers == {"sdpa_packed": 11.0} and row.best_peer == "sdpa_packed"
    assert row.skipped["wrong"].startswith("differs from fp64 by")
    assert row.skipped["failing"] == "RuntimeError: no kernel for this shape"
    assert row.skipped["absent"] == "no_such_package is not installed"


def test_the_floor_counts_the_batch(toy_jobs: list[gpu.Job]) -> None:
    row = gpu.measure(toy_jobs[0], CEILINGS, "cpu")
    rates = floors.Rates(1.0, 100e3, 1000.0)
    one = floors.attention(TOY, 20, trees.make("eagle-16"), "bf16", rates)
    assert row.bytes == 2 * one.bytes and row.flops == 2 * one.flops
    assert row.floor_us == pytest.approx(2 * one.us)
    assert row.ours_us == 4.0 and row.over_peer == pytest.approx(11 / 4)


def test_programs_are_run_and_failures_are_told(tmp_path: Path) -> None:
    good = tmp_path / "micro_plan_cuda"
    good.write_text('#!/bin/sh\necho \'[{"tree": "a", "us": 1.5}]\' > "$2"\n')
    bad = tmp_path / "micro_remap_cuda"
    bad.write_text("#!/bin/sh\necho self-check failed >&2; exit 1\n")
    for program in (good, bad):
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    micro, failed = gpu.run_programs(tmp_path, ["A1"], quick=True)
    assert micro == {"plan": [{"tree": "a", "us": 1.5}]}
    assert failed == ["micro_remap_cuda: exit status 1: self-check failed"]


def test_report(toy_jobs: list[gpu.Job], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [gpu.measure(job, CEILINGS, "cpu") for job in toy_jobs]
    micro = {"plan": [{"tree": "eagle-60", "us": 1.234567}]}
    gpu.write_report(tmp_path, CEILINGS, rows, micro, ["something"])
    text = (tmp_path / "report.md").read_text()
    assert (tmp_path / "cost-against-density.png").is_file()
    assert "| eagle-60 | 1.23 |" in text and "- something" in text and "| A2 | B 2, 4/2 d16" in text
    json.dumps(gpu.as_json(CEILINGS, rows, micro, []), allow_nan=False)
