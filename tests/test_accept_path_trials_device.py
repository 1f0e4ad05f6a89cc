# SPDX-License-Identifier: Apache-2.0
"""The rules that try children on devices: the same bits in any order, a status for each error."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support import simt
from support.acceptance import INTEGER_FIELDS, plan_of
from support.drafted import Call, random_call
from support.nearby import differences, is_nearby
from support.rules import CALLS, WITH_DRAFTS, problem
from torch import Tensor
from treeattn.ops import AcceptedPath, accept_path

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(params=simt.ORDERS)
def emulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, request.param)


def random_one(seed: int) -> Call:
    rng = random.Random(seed)
    vocab_size = rng.choice([2, 9, 33, 511, 1025, 4099, 9001])
    name = rng.choice(list(CALLS))
    x = random_call(rng, name, vocab_size, rng.choice([FP32, BF16, FP16]), 4)
    x.options.update(return_logprobs=True, return_processed_logprobs=True)
    return x


def run(x: Call, **more: Any) -> AcceptedPath:
    return accept_path(x.logits, x.tokens, x.plan, **x.options, **more)


def bits_of(accepted: AcceptedPath) -> tuple[Tensor, ...]:
    assert accepted.logprobs is not None and accepted.processed_logprobs is not None
    integers = (getattr(accepted, name) for name in INTEGER_FIELDS)
    return *integers, accepted.logprobs, accepted.processed_logprobs


@pytest.mark.parametrize("seed", range(60))
def test_the_cpu_chooses_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_one(seed)
    on_cpu, on_device = torch.zeros(2, 2, 6, 4, dtype=torch.int64)
    want = run(x, counts=on_cpu)
    with simt.poisoned_outputs():
        simt.use(monkeypatch, simt.ORDERS[seed % len(simt.ORDERS)])
        got = run(x, counts=on_device)
    for b in range(4):
        if found := differences(got, want, b):
            assert is_nearby(got, b, x.logits, x.tokens, x.plan, x.options), found
            return  # counts differ where paths do
    assert torch.equal(on_device, on_cpu)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_bits_in_every_order(seed: int) -> None:
    x = random_one(100 + seed)
    counts = torch.zeros(2, 6, 4, dtype=torch.int64)

    def run_all() -> tuple[Tensor, ...]:
        counts.zero_()
        return *bits_of(run(x, counts=counts)), counts.clone()

    simt.assert_same_in_every_order(run_all)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_where_a_row_begins_does_not_show(name: str, dtype: torch.dtype, emulator: None) -> None:
    """Rows at every offset within 16 bytes, of the target and of the draft: the same bits."""
    vocab_size = 2_051
    rng, generator = random.Random(name), torch.Generator().manual_seed(0)
    x = problem(rng, name, [[-1, 0, 0, 1]])
    rows = {"logits": torch.randn(4, vocab_size, generator=generator).to(dtype)}
    if name in WITH_DRAFTS:
        rows["draft_probs"] = torch.rand(4, vocab_size, generator=generator).softmax(1)
    parents = [-1, 0, 1, 2] if name == "block" else [-1, 0, 0, 1]
    results = []
    for shift in range(16 // dtype.itemsize):
        shifted = {}
        for key, value in rows.items():
            wide = torch.full((4, vocab_size + 16), torch.nan, dtype=value.dtype)
            wide[:, shift : shift + vocab_size] = value
            shifted[key] = wide[:, shift : shift + vocab_size]
        results.append(
            accept_path(
                **shifted, tokens=x["tokens"], plan=plan_of([parents]), seeds=5, top_p=0.97,
                return_logprobs=True, return_processed_logprobs=True, **CALLS[name],
            )
        )  # fmt: skip
    for result in results:
        assert all(map(simt.same_bits, bits_of(result), bits_of(results[0])))


VALID: dict[str, Any] = {
    "logits": torch.zeros(6, 40),
    "tokens": torch.tensor([0, 1, 0, 2, 0, 3]),
    "plan": plan_of([[-1, 0]] * 3),
    "rule": "swor",
    "seeds": 1,
    "draft_probs": torch.full((6, 30), 1 / 30),
}
IDS = torch.arange(30)
ONE_BAD = [
    {"temperature": torch.tensor([1.0, -1.0, 1.0])},
    {"top_p": torch.tensor([0.9, torch.nan, 0.9])},
    {"min_p": torch.tensor([0.1, 1.5, 0.1])},
    {"seeds": None, "temperature": torch.tensor([0.0, 0.5, 0.0])},
    {"draft_probs": None, "temperature": torch.tensor([0.0, 0.5, 0.0])},
    {"draft_rows": torch.tensor([0, 1, 0, 6, 0, 5]).int()},
    {"draft_rows": torch.tensor([0, 1, 0, -1, 0, 5]).int()},
    {"plan": plan_of([[-1], [-1, 0, 0], [-1, 0]]), "tokens": torch.tensor([0, 0, 2, 2, 0, 3])},
    {"plan": plan_of([[-1], [-1, 0, 0], [-1, 0]]), "rule": "block"},
]
ALL_BAD = [
    {"draft_ids": torch.where(IDS == 7, 40, IDS)},
    {"draft_ids": torch.where(IDS == 7, -1, IDS)},
    {"draft_ids": torch.where(IDS == 7, 3, IDS)},
]


@pytest.mark.parametrize("change", ONE_BAD, ids=lambda change: ", ".join(change))
def test_what_only_the_device_sees_is_status_4(change: dict[str, Any], emulator: None) -> None:
    with simt.poisoned_outputs():
        got = accept_path(**{**VALID, **change}, return_processed_logprobs=True)
    assert got.status.tolist() == [0, 4, 0]
    assert got.path[1].tolist() == [-1, -1]
    assert got.emitted[1].tolist() == [-1, -1]
    assert (got.num_accepted[1], got.next_tokens[1]) == (0, -1)
    assert got.next_tokens[[0, 2]].ge(0).all()
    assert got.processed_logprobs is not None
    assert got.processed_logprobs[1].isnan().all()


@pytest.mark.parametrize("change", ALL_BAD, ids=["above", "below", "twice"])
def test_bad_draft_ids_are_status_4_where_drafts_are_read(
    change: dict[str, Any], emulator: None
) -> None:
    got = accept_path(**{**VALID, **change}, temperature=torch.tensor([1.0, 0.0, 1.0]))
    assert got.status.tolist() == [4, 0, 4]


def test_a_workspace_is_needed(monkeypatch: pytest.MonkeyPatch, emulator: None) -> None:
    from treeattn import accept

    monkeypatch.setattr(accept, "_workspace", lambda *arguments: None)
    message = "accept_path: workspace must have at least 181 elements on this device, got 0"
    with pytest.raises(ValueError, match=message):
        accept_path(**VALID)
