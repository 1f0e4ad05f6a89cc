# SPDX-License-Identifier: Apache-2.0
"""A row of attention: the gather counts, wrong and hopeless peers leave with a reason."""

from __future__ import annotations

import time

import pytest
import torch
import treeattn

from bench.calibrate import Calibration, Ceiling
from bench.check import WrongResultError
from bench.items import attention_row
from bench.models import Model
from bench.peers import attention as peers
from bench.problem import Case
from bench.session import Budget, Session

TOY = Model("toy", num_qo_heads=4, num_kv_heads=2, head_dim=16, num_layers=1)
CASE = Case(TOY, 20, "eagle-16", "fp32")


@pytest.fixture
def session() -> Session:
    calibration = Calibration("toy", "cpu", 2, "torch", 1, "words")
    calibration.fma = {"toy": dict.fromkeys((1, 2), Ceiling(100.0, 0.0, True))}
    calibration.read = dict.fromkeys((1, 2), Ceiling(10.0, 0.0, True))
    return Session(calibration, Budget(total_s=1.0, jobs_left=5, quiet_s=0.01), quick=True)


def test_a_peer_pays_for_its_gather(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowGather(peers.Gather):
        def __call__(self, pool: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
            end = time.process_time() + 0.02
            while time.process_time() < end:
                pass
            return super().__call__(pool)

    monkeypatch.setattr(peers, "Gather", SlowGather)
    row = attention_row.measure(session, "A2", CASE, threads=1)  # CPU time: noise does not count
    assert row.gather_us is not None and row.gather_us >= 20_000
    assert set(row.peers) == set(peers.DENSE)
    assert all(row.gather_us < us < 2 * row.gather_us for us in row.peers.values())
    assert row.ours_us < 5_000 and row.extra["plan_us"] < 5_000
    assert row.max_error is not None and row.max_error < 2e-5


def test_without_peers_there_is_no_gather(session: Session) -> None:
    row = attention_row.measure(session, "H1", CASE, threads=2, peers=())
    assert row.best_peer is row.over_peer is row.gather_us is None and row.peers == {}


def test_a_wrong_peer_is_left_out(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = peers._MAKERS["sdpa_gqa"]

    def wrong(inputs: peers._Inputs) -> peers.Peer:
        peer = honest(inputs)
        return peers.Peer(lambda: peer.run() + 1e-3, peer.unpack)

    monkeypatch.setitem(peers._MAKERS, "sdpa_gqa", wrong)
    row = attention_row.measure(session, "A2", CASE, threads=2)
    assert "sdpa_gqa" not in row.peers and "error against fp64" in row.skipped["sdpa_gqa"]


def clock_runs(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[float]:
    """Let eager_packed's runs take `seconds` one by one when they are clocked, and those of other
    peers a millisecond. Returns what is left of `seconds`."""
    left = list(seconds)
    honest = peers._MAKERS["eager_packed"]
    marked: list[peers.Peer] = []

    def make(inputs: peers._Inputs) -> peers.Peer:
        marked.append(honest(inputs))
        return marked[-1]

    def clock(peer: peers.Peer) -> float:
        return left.pop(0) if any(peer is one for one in marked) else 1e-3

    monkeypatch.setitem(peers._MAKERS, "eager_packed", make)
    monkeypatch.setattr(attention_row, "_seconds", clock)
    return left


def test_a_hopeless_peer_is_not_run_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = clock_runs(monkeypatch, [0.05] * 6)
    for _ in range(2):
        row = attention_row.measure(session, "A2", CASE, threads=2)
        assert "eager_packed" not in row.peers
        assert row.skipped["eager_packed"].startswith("50 ms, 50 times the best peer")
    assert len(left) == 3  # clocked three times, on the first row only
    bf16 = Case(TOY, 20, "eagle-16", "bf16")
    attention_row.measure(session, "A2", bf16, threads=2)
    assert left == []  # another dtype is another matter


def test_one_slow_moment_is_forgiven(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    left = clock_runs(monkeypatch, [0.05, 1e-3, 1e-3])
    row = attention_row.measure(session, "A2", CASE, threads=2)
    assert left == []
    assert "eager_packed" in row.peers and not session.hopeless


def test_a_wrong_result_of_ours_makes_no_row(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = treeattn.tree_attention

    def wrong(*arguments: object, **options: object) -> torch.Tensor:
        out = honest(*arguments, **options)  # type: ignore[arg-type]
        assert isinstance(out, torch.Tensor)
        out[0, 0, 0] += 1e-3
        return out

    monkeypatch.setattr(treeattn, "tree_attention", wrong)
    with pytest.raises(WrongResultError, match="tree_attention"):
        attention_row.measure(session, "A2", CASE, threads=2)
