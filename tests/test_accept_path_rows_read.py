# SPDX-License-Identifier: Apache-2.0
"""Which rows the rules that try children read: on the CPU by pages, on the emulator by counters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import pages, simt
from support.acceptance import plan_of
from support.rules import CALLS, FOR_TREES, WITH_DRAFTS
from treeattn.ops import accept_path


@pytest.mark.skipif(not pages.are_counted(), reason="holes are not filled page by page here")
@pytest.mark.parametrize("name", FOR_TREES)
def test_a_star_costs_two_rows_however_many_children_it_has(name: str) -> None:
    num_nodes, vocab_size = 1024, 32 * 1024
    logits = pages.Zeros(num_nodes, vocab_size * 4)
    got = accept_path(
        logits.tensor, torch.arange(num_nodes), plan_of([[-1] + [0] * (num_nodes - 1)]),
        draft_probs=torch.full((1, vocab_size), 1 / vocab_size),
        draft_rows=torch.zeros(num_nodes, dtype=torch.int32),
        uniforms=torch.zeros(num_nodes, 2), **CALLS[name],
    )  # fmt: skip
    assert got.path.tolist() == [[0, 1]]
    assert logits.rows_read() == 2
    assert not logits.tensor.any()
    assert logits.rows_read() == num_nodes


def rows_read(
    monkeypatch: pytest.MonkeyPatch, name: str, uniforms: torch.Tensor, **options: Any
) -> tuple[int, int, list[int]]:
    """(rows of logits, rows of draft laws, path) of a chain of five, all laws flat and equal."""
    plan = plan_of([[-1, 0, 1, 2, 3]])
    draft = {"draft_probs": torch.full((5, 8), 1 / 8)} if name in WITH_DRAFTS else {}
    simt.use(monkeypatch, "forward")
    simt.take_counters()
    got = accept_path(
        torch.zeros(5, 8), torch.arange(5), plan, uniforms=uniforms, **draft, **CALLS[name],
        **options,
    )  # fmt: skip
    counters = simt.take_counters()
    assert got.status.tolist() == [0]
    return counters["rows_read"], counters["draft_rows_read"], got.path[0].tolist()


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_each_row_is_read_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_read(monkeypatch, name, torch.zeros(5, 2))
    assert whole == (5, 4, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("name", ["multistep", "swor"])
def test_nothing_below_a_rejected_child_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter leaves 0 and 1 only, so the child with token 2 has no chance."""
    assert rows_read(monkeypatch, name, torch.zeros(5, 2), top_k=2) == (2, 2, [0, 1, -1, -1, -1])


@pytest.mark.parametrize("name", ["block", "traversal_iid", "traversal_swor"])
def test_nothing_below_a_node_without_reach_is_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_read(monkeypatch, name, torch.zeros(5, 2), top_k=2) == (2, 2, [0, 1, -1, -1, -1])


def test_typical_reads_the_rows_of_accepted_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    uniforms = torch.zeros(5, 2)
    assert rows_read(monkeypatch, "typical", uniforms) == (5, 0, [0, 1, 2, 3, 4])
