# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
import treeattn
from support.simt import same_bits
from treeattn import reference

MACHINES = "all"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def pools(
    dtype: torch.dtype, device: str = "cpu", head_dim: int = 40
) -> tuple[torch.Tensor, torch.Tensor]:
    k_cache = torch.full((5, 4, 3, head_dim), 7.0).to(device, dtype)
    return k_cache, k_cache.clone()


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_kv(dtype: torch.dtype, index_dtype: torch.dtype, device: str) -> None:
    k, v = torch.randn(2, 6, 3, 40).to(device, dtype)
    slots = torch.tensor([19, -1, 0, 7, -1, 8], dtype=index_dtype, device=device)
    actual, expected = pools(dtype, device), pools(dtype, device)
    treeattn.write_kv(k, v, *actual, slots)
    reference.write_kv(k, v, *expected, slots)
    assert same_bits(actual[0], expected[0]) and same_bits(actual[1], expected[1])


@pytest.mark.parametrize("scale", [None, 0.5, torch.tensor([0.5, 3.0, 0.01])], ids=str)
@pytest.mark.parametrize("head_dim", [7, 8], ids=lambda d: f"d{d}")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fp8_rounds_to_nearest_even_and_saturates(
    dtype: torch.dtype, head_dim: int, scale: float | torch.Tensor | None, device: str
) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = every.view(torch.float16).float().nan_to_num(1.0, 1e5, -1e5).to(device, dtype)
    rows = values[: 65536 // (3 * head_dim) * 3 * head_dim].reshape(-1, 3, head_dim)
    num_slots = len(rows)
    actual = torch.zeros(num_slots, 1, 3, head_dim, dtype=torch.float8_e4m3fn, device=device)
    expected = actual.clone()
    slots = torch.arange(num_slots, device=device)
    scale = scale.to(device) if isinstance(scale, torch.Tensor) else scale
    treeattn.write_kv(rows, rows, actual, actual.clone(), slots, k_scale=scale)
    reference.write_kv(
        rows, rows, expected, expected.clone(), slots, k_scale=1.0 if scale is None else scale
    )
    assert same_bits(actual, expected)


def test_strided_rows_and_pools(device: str) -> None:
    fused = torch.randn(6, 9, 40, device=device)
    pool = torch.zeros(5, 3, 4, 80, device=device)  # vLLM's HND pool: K and V side by side
    k_cache, v_cache = pool.transpose(1, 2).split(40, dim=-1)
    slots = torch.tensor([3, 17, 4, 9, 0, 19], device=device)
    treeattn.write_kv(fused[:, 3:6], fused[:, 6:], k_cache, v_cache, slots)
    for row, slot in enumerate(slots.tolist()):
        assert torch.equal(k_cache[slot // 4, slot % 4], fused[row, 3:6])
        assert torch.equal(v_cache[slot // 4, slot % 4], fused[row, 6:])
    assert int((pool != 0).any(-1).sum()) == 6 * 3


@pytest.mark.parametrize("shift", [0, 1, 2], ids=lambda s: f"shift{s}")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_are_not_aligned(dtype: torch.dtype, shift: int, device: str) -> None:
    """Views that start, and rows that lie, off the 16 bytes that wide accesses need."""
    k, v = torch.randn(2, 6, 3, 40 + shift, device=device).to(dtype)[..., shift:]
    slots = torch.tensor([2, 19, 0, 7, 11, 8], device=device)
    for pool_shift in (0, 1):
        actual, expected = (
            [pool[..., pool_shift:] for pool in pools(dtype, device, 40 + pool_shift)]
            for _ in range(2)
        )
        treeattn.write_kv(k, v, *actual, slots)
        reference.write_kv(k, v, *expected, slots)
        assert same_bits(actual[0], expected[0]) and same_bits(actual[1], expected[1])


def test_empty(device: str) -> None:
    k_cache, v_cache = pools(torch.float32, device)
    none = torch.zeros(0, 3, 40, device=device)
    slots = torch.zeros(0, dtype=torch.int64, device=device)
    treeattn.write_kv(none, none, k_cache, v_cache, slots)
    assert (k_cache == 7.0).all() and (v_cache == 7.0).all()


BAD_SLOTS = [
    ("slot_mapping[2] must be -1 or a slot of the pool (0 to 19), got 20", [0, 1, 20]),
    ("slot_mapping[0] must be -1 or a slot of the pool (0 to 19), got -2", [-2, 1, 2]),
    ("slot_mapping[1] must be -1 or a slot of the pool (0 to 19), got 4294967296", [0, 2**32, 2]),
]


@pytest.mark.parametrize(("message", "slots"), BAD_SLOTS, ids=[m for m, _ in BAD_SLOTS])
def test_a_slot_outside_the_pool_is_never_written(
    message: str, slots: list[int], machine: str, device: str
) -> None:
    """The CPU sees it before anything is written; a device can only leave the row out."""
    actual, expected = pools(torch.float32, device), pools(torch.float32, device)
    rows = torch.randn(3, 3, 40, device=device)
    bad = torch.tensor(slots, device=device)
    if machine == "cpu":
        with pytest.raises(ValueError) as error:
            treeattn.write_kv(rows, rows, *actual, bad)
        assert message in str(error.value)
    else:
        treeattn.write_kv(rows, rows, *actual, bad)
        good = torch.where((bad >= 0) & (bad < 20), bad, -1)
        reference.write_kv(rows, rows, *expected, good)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


BAD_CALLS = [
    ("slot_mapping must be int32 or int64", {"slots": [0.0, 1.0, 2.0]}),
    ("slot_mapping must have shape [num_nodes]", {"slots": [0, 1]}),
    ("k must have shape", {"k": torch.zeros(3, 2, 40)}),
    ("v must be float32", {"v": torch.zeros(3, 3, 40, dtype=torch.float16)}),
    ("k must have k_cache's dtype", {"k": torch.zeros(3, 3, 40, dtype=torch.bfloat16)}),
    ("k_scale is for float8_e4m3fn pools only", {"k_scale": 0.5}),
]


@pytest.mark.parametrize(("message", "change"), BAD_CALLS, ids=[m for m, _ in BAD_CALLS])
def test_errors_write_nothing(message: str, change: dict, device: str) -> None:
    k_cache, v_cache = pools(torch.float32, device)
    slots = torch.tensor(change.get("slots", [0, 1, 2]), device=device)
    k = change.get("k", torch.zeros(3, 3, 40)).to(device)
    v = change.get("v", torch.zeros(3, 3, 40) if k.dtype == torch.float32 else k).to(device)
    with pytest.raises(ValueError) as error:
        treeattn.write_kv(k, v, k_cache, v_cache, slots, k_scale=change.get("k_scale"))
    assert message in str(error.value)
    assert (k_cache == 7.0).all() and (v_cache == 7.0).all()
