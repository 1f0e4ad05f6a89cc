# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch
import treeattn
from treeattn import reference

MACHINES = "all"
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def state(
    seed: int, dtype: torch.dtype, device: str, head_dim: int = 24
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(300, 5, head_dim, generator=generator).to(device, dtype)
    return out, 10 * torch.randn(300, 5, generator=generator).to(device)


@pytest.mark.parametrize("head_dim", [1, 20, 24, 256], ids=lambda d: f"d{d}")
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_merge_states(dtype: torch.dtype, head_dim: int, device: str) -> None:
    a, b = state(0, dtype, device, head_dim), state(1, dtype, device, head_dim)
    out, lse = treeattn.merge_states(*a, *b)
    expected, expected_lse = reference.merge_states(*a, *b)
    assert (out.double() - expected).abs().max() <= TOLERANCE[dtype]
    assert (lse.double() - expected_lse).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_the_empty_state_is_the_identity_bitwise(dtype: torch.dtype, device: str) -> None:
    full = state(0, dtype, device)
    empty = torch.zeros_like(full[0]), torch.full_like(full[1], -math.inf)
    for merged in (treeattn.merge_states(*full, *empty), treeattn.merge_states(*empty, *full)):
        assert torch.equal(merged[0], full[0]) and torch.equal(merged[1], full[1])
    garbage = torch.full_like(full[0], math.nan), empty[1]  # an empty state's out is not looked at
    for merged in (treeattn.merge_states(*full, *garbage), treeattn.merge_states(*garbage, *full)):
        assert torch.equal(merged[0], full[0]) and torch.equal(merged[1], full[1])
    out, lse = treeattn.merge_states(*empty, *garbage)
    assert (out == 0).all() and (lse == -math.inf).all()


def test_strided_states_equal_packed_copies(device: str) -> None:
    """A slice of a wider result, and heads before nodes, as other kernels leave them."""
    a, b = state(0, torch.float32, device), state(1, torch.float32, device)
    expected = treeattn.merge_states(*a, *b)
    wide = torch.full((300, 11, 24), math.nan, device=device)
    wide[:, 1:11:2] = a[0]
    by_head = b[0].transpose(0, 1).contiguous().transpose(0, 1)
    lses = [lse.t().contiguous().t() for lse in (a[1], b[1])]
    actual = treeattn.merge_states(wide[:, 1:11:2], lses[0], by_head, lses[1])
    for got, wanted in zip(actual, expected, strict=True):
        assert torch.equal(got, wanted) and got.is_contiguous()
    # One state for every head: stride 0.
    one = a[0][:, :1], a[1][:, :1]
    spread = one[0].expand(-1, 5, -1), one[1].expand(-1, 5)
    got = treeattn.merge_states(*spread, *b)
    wanted = treeattn.merge_states(*(x.contiguous() for x in spread), *b)
    assert torch.equal(got[0], wanted[0]) and torch.equal(got[1], wanted[1])


def test_more_heads_than_a_grid_has_rows(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    outs = torch.randn(2, 1, 65537, 1, generator=generator).to(device)
    lses = torch.randn(2, 1, 65537, generator=generator).to(device)
    out, lse = treeattn.merge_states(outs[0], lses[0], outs[1], lses[1])
    expected, expected_lse = reference.merge_states(outs[0], lses[0], outs[1], lses[1])
    assert (out.double() - expected).abs().max() <= TOLERANCE[torch.float32]
    assert (lse.double() - expected_lse).abs().max() <= 1e-5


BAD_CALLS = [
    ("out_b must have shape", 2, torch.zeros(300, 5, 8)),
    ("lse_a must be float32", 1, torch.zeros(300, 5, dtype=torch.float64)),
    ("out_b must be float32", 2, torch.zeros(300, 5, 24, dtype=torch.float16)),
    ("out_a must be contiguous", 0, torch.zeros(300, 5, 48)[..., ::2]),
]


@pytest.mark.parametrize(("message", "index", "value"), BAD_CALLS, ids=[c[0] for c in BAD_CALLS])
def test_errors(message: str, index: int, value: torch.Tensor, device: str) -> None:
    arguments = [*state(0, torch.float32, device), *state(1, torch.float32, device)]
    arguments[index] = value.to(device)
    with pytest.raises(ValueError) as error:
        treeattn.merge_states(*arguments)
    assert message in str(error.value)
