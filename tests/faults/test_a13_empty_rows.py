# SPDX-License-Identifier: Apache-2.0
"""A13: rows with nothing to attend to are 0 with log-sum-exp -inf, and no merge sees them."""

from __future__ import annotations

import math
import random

import pytest
import torch
import treeattn
from support.logical import Request, attend, lay_out, per_request, random_request, same_bits
from support.trees import random_parents

MACHINES = "host"

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def two_requests(dtype: torch.dtype) -> list[Request]:
    rng = random.Random(0)
    return [
        random_request(size, random_parents(rng, size), context_len, dtype=dtype)
        for size, context_len in ((3, 40), (8, 90))
    ]


def empty_request(dtype: torch.dtype) -> Request:
    return random_request(9, [], 20, dtype=dtype)


@DTYPES
def test_padded_rows(dtype: torch.dtype, cpu_isa: str) -> None:
    """Sizes 3 and 8 in a buffer of 16 rows, and an inactive row of the batch between them."""
    a, b = two_requests(dtype)
    alone = [attend(lay_out([request], 16)) for request in (a, b)]
    x = lay_out([a, empty_request(dtype), b], 16, capacity=16, max_depth=7)
    out, lse = attend(x)
    assert (out[11:] == 0).all() and (lse[11:] == -math.inf).all()
    for index, (want_out, want_lse) in zip((0, 2), alone, strict=True):
        assert same_bits(per_request(x, out)[index], want_out)
        assert same_bits(per_request(x, lse)[index], want_lse)
        assert want_out.isfinite().all() and want_lse.isfinite().all()


@DTYPES
def test_nobody_is_there(dtype: torch.dtype, cpu_isa: str) -> None:
    x = lay_out([empty_request(dtype)] * 2, 16, capacity=8, max_depth=3)
    out, lse = attend(x)
    assert out.shape[0] == 8 and (out == 0).all() and (lse == -math.inf).all()


@DTYPES
def test_merge(dtype: torch.dtype, cpu_isa: str) -> None:
    """The padded rows of one part leave the other part's as they are, bit by bit."""
    a, b = two_requests(dtype)
    whole = attend(lay_out([a, b], 16, capacity=16, max_depth=7))
    none = attend(lay_out([empty_request(dtype)] * 2, 16, capacity=16, max_depth=7))
    for merged in (treeattn.merge_states(*whole, *none), treeattn.merge_states(*none, *whole)):
        assert same_bits(merged[0], whole[0]) and same_bits(merged[1], whole[1])
    out, lse = treeattn.merge_states(*none, *none)
    assert (out == 0).all() and (lse == -math.inf).all()


@DTYPES
@pytest.mark.parametrize("masked", [-1e4, -1e30, torch.finfo(torch.float32).min])
def test_very_negative_but_finite(masked: float, dtype: torch.dtype, cpu_isa: str) -> None:
    """Engines that mask with a finite number hand over such log-sum-exps."""
    full = attend(lay_out([two_requests(dtype)[1]], 16))
    other = torch.ones_like(full[0]), torch.full_like(full[1], masked)
    for merged in (treeattn.merge_states(*full, *other), treeattn.merge_states(*other, *full)):
        assert same_bits(merged[0], full[0]) and same_bits(merged[1], full[1])
    out, lse = treeattn.merge_states(*other, *other)
    assert (out == 1).all() and torch.allclose(lse, other[1] + math.log(2))
