# SPDX-License-Identifier: Apache-2.0
"""Packed linear layers: right, and a row's bits independent of its neighbours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.amx import HAS_AMX
from treeattn.decoder.linear import Linear, can_pack

SHAPES = [(64, 64), (576, 960), (1536, 576), (96, 37), (2048, 128)]
NUM_ROWS = [0, 1, 2, 3, 4, 5, 8, 17, 64, 300]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_rows_do_not_depend_on_their_number(
    dtype: torch.dtype, shape: tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(0)
    in_features, out_features = shape
    weight = (torch.randn(out_features, in_features) / in_features**0.5).to(dtype)
    offset = torch.randn(out_features).to(dtype) if bias else None
    x = torch.randn(300, in_features).to(dtype)
    linear = Linear(weight, offset)
    whole = linear(x)
    expected = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(whole.double(), expected, rtol=tolerance, atol=tolerance)
    for num_rows in NUM_ROWS:
        rows = linear(x[:num_rows])
        assert rows.shape == (num_rows, out_features)
        if linear.packed and not (HAS_AMX and dtype == torch.bfloat16):
            assert torch.equal(rows, whole[:num_rows]), num_rows


def test_falls_back_where_weights_cannot_be_packed() -> None:
    weight = torch.randn(8, 16, dtype=torch.float64)
    assert not can_pack(weight)
    x = torch.randn(3, 16, dtype=torch.float64)
    assert torch.equal(Linear(weight)(x), F.linear(x, weight))
