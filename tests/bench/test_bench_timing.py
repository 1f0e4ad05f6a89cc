# SPDX-License-Identifier: Apache-2.0
"""Statistics, interleaving, and the rule that only quiet blocks count."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import torch

from bench import load, timing
from bench.timing import Block, Effort, Timing, Work, compare, summarise

STAT = "cpu  100 10 50 900 40 3 7 20 5 5\ncpu0 1 2 3\n"


def test_busy_time_counts_everything_but_idle_and_guests() -> None:
    # user, nice, system, irq, softirq and steal; 100 ticks a second
    assert load.busy_seconds(STAT, 100) == pytest.approx(1.90)


def test_other_load_is_what_we_did_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.os, "cpu_count", lambda: 2)
    before = load.Snapshot(wall=10.0, busy=100.0, own=5.0)
    after = load.Snapshot(wall=11.0, busy=101.5, own=6.2)
    assert load.other_load(before, after) == pytest.approx((1.5 - 1.2) / 2)
    assert load.other_load(before, None) is None
    mostly_ours = load.Snapshot(wall=11.0, busy=101.0, own=6.2)
    assert load.other_load(before, mostly_ours) == 0.0


def test_quantile_interpolates() -> None:
    assert timing.quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert timing.quantile([1.0, 2.0, 4.0], 0.25) == pytest.approx(1.5)
    assert timing.quantile([1.0, 2.0, 4.0], 0.8) == pytest.approx(2.0 + 0.6 * 2.0)
    assert timing.quantile([7.0], 0.2) == 7.0


def block(other: float | None, *seconds: float) -> Block:
    return Block({"a": list(seconds)}, other, sum(seconds))


def test_noisy_blocks_do_not_count() -> None:
    blocks = [block(0.01, 1.0, 2.0), block(0.5, 50.0, 60.0), block(0.03, 3.0)]
    assert summarise(blocks, ["a"])["a"] == Timing(
        median=2e6,
        p20=pytest.approx(1.4e6),
        p80=pytest.approx(2.6e6),
        best=1e6,
        n=3,
        other_load=pytest.approx(0.02),
        valid=True,
    )


@pytest.mark.parametrize("others", [timing.MAX_OTHER_LOAD, 0.5, None])
def test_without_enough_quiet_samples_the_result_is_invalid(others: float | None) -> None:
    result = summarise([block(0.0, 1.0, 2.0), block(others, 3.0, 4.0)], ["a"])["a"]
    assert not result.valid
    assert result.n == 4 and result.median == 2.5e6  # shown, but never a gate


class FakeMachine:
    """Others use `loads[i]` of the machine during block i, the last one for ever."""

    def __init__(self, *loads: float) -> None:
        self.loads = loads
        self.blocks = 0
        self.busy = 0.0
        self.wall = 0.0
        self.starts = True

    def snapshot(self) -> load.Snapshot:
        if not self.starts:
            self.wall += 1.0
            self.busy += self.loads[min(self.blocks, len(self.loads) - 1)] * load.os.cpu_count()
            self.blocks += 1
        self.starts = not self.starts
        return load.Snapshot(self.wall, self.busy, 0.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMachine]:
    machine = FakeMachine(0.5, 0.5, 0.0)
    monkeypatch.setattr(timing.load, "snapshot", machine.snapshot)
    yield machine


EFFORT = Effort(quiet_s=0.02, limit_s=1.0, block_s=0.01)


def test_sampling_waits_for_a_quiet_moment(machine: FakeMachine) -> None:
    result = compare({"a": Work(lambda: time.sleep(0.001))}, threads=2, effort=EFFORT)["a"]
    assert result.valid and result.other_load == 0.0
    assert machine.blocks >= 4  # two noisy ones, then quiet ones for 20 ms


def test_sampling_gives_up_on_a_busy_machine(machine: FakeMachine) -> None:
    machine.loads = (0.5,)
    effort = Effort(quiet_s=0.02, limit_s=0.05, block_s=0.01)
    result = compare({"a": Work(lambda: time.sleep(0.001))}, threads=2, effort=effort)["a"]
    assert not result.valid and result.other_load == pytest.approx(0.5)


def test_slow_candidates_get_their_three_samples(machine: FakeMachine) -> None:
    machine.loads = (0.0,)
    effort = Effort(quiet_s=0.01, limit_s=0.01, block_s=0.001)
    result = compare({"a": Work(lambda: time.sleep(0.02))}, threads=2, effort=effort)["a"]
    assert result.valid and result.n == timing.MIN_SAMPLES


def test_candidates_take_turns(machine: FakeMachine) -> None:
    machine.loads = (0.0,)
    order: list[str] = []

    def work(name: str) -> Work:
        return Work(lambda: (order.append(name), time.sleep(0.001)))

    compare({"a": work("a"), "b": work("b")}, threads=2, effort=EFFORT)
    sampled = "".join(order).removeprefix("aabb")  # the warm-up
    turns = [(name, len(list(group))) for name, group in itertools.groupby(sampled)]
    assert [name for name, _ in turns] == ["a", "b"] * (len(turns) // 2) and len(turns) > 2
    counts = {name: {count for other, count in turns if other == name} for name in "ab"}
    assert all(len(found) == 1 and 3 <= min(found) <= 5 for found in counts.values())  # 4 ms, and 1


def test_the_run_that_warms_the_caches_is_not_timed(machine: FakeMachine) -> None:
    """Whoever ran last runs fast."""
    machine.loads = (0.0,)
    last = ""

    def work(name: str, warm: bool = True) -> Work:
        def run() -> None:
            nonlocal last
            time.sleep(0.001 if last == name else 0.006)
            last = name

        return Work(run, warm=warm)

    result = compare({"a": work("a"), "b": work("b", warm=False)}, threads=2, effort=EFFORT)
    assert 1000 <= result["a"].median < 3000 and result["b"].median >= 6000


def test_a_first_run_that_was_slow_decides_nothing(machine: FakeMachine) -> None:
    machine.loads = (0.0,)
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        time.sleep(0.03 if runs == 1 else 0.001)

    n = compare({"a": Work(run)}, threads=2, effort=EFFORT)["a"].n
    assert runs - 2 >= 4 * n  # three or more untimed runs before each


def test_long_runs_need_no_warm_caches(machine: FakeMachine) -> None:
    machine.loads = (0.0,)
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        time.sleep(timing.WARM_S + 0.001)

    assert compare({"a": Work(run)}, threads=2, effort=EFFORT)["a"].n == runs - 2


def test_one_thread_is_cpu_time_and_two_are_wall_time(machine: FakeMachine) -> None:
    machine.loads = (0.0,)
    sleeper = {"a": Work(lambda: time.sleep(0.004), prepare=lambda: None)}
    before = torch.get_num_threads()
    assert compare(sleeper, threads=1, effort=EFFORT)["a"].median < 2000
    assert compare(sleeper, threads=2, effort=EFFORT)["a"].median >= 4000
    assert torch.get_num_threads() == before


def test_short_runs_are_repeated_and_preparation_is_not_timed(machine: FakeMachine) -> None:
    machine.loads = (0.0,)
    runs = prepared = 0

    def count() -> None:
        nonlocal runs
        runs += 1

    def prepare() -> None:
        nonlocal prepared
        prepared += 1
        time.sleep(0.002)

    plain = compare({"a": Work(count)}, threads=2, effort=EFFORT)["a"]
    assert runs > 100 * plain.n and plain.median < 100
    runs = 0
    careful = compare({"a": Work(count, prepare)}, threads=2, effort=EFFORT)["a"]
    assert runs == prepared and careful.median < 1000
