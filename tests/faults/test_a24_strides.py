# SPDX-License-Identifier: Apache-2.0
"""A24: strided inputs, and strides of dimensions of size 1 that mean nothing: the result is bitwise
that of packed copies, or a ValueError that names the tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import treeattn
from support.accepted import accepted_path
from support.attention import AttentionCase, AttentionProblem
from support.logical import same_bits
from torch import Tensor

MACHINES = "host"

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def fused(x: Tensor, before: int, after: int) -> Tensor:
    """x as a slice of rows that hold `before` heads in front of it and `after` behind."""
    wide = torch.full((x.shape[0], before + x.shape[1] + after, x.shape[2]), torch.nan)
    wide = wide.to(x.dtype)
    wide[:, before : before + x.shape[1]] = x
    return wide[:, before : before + x.shape[1]]


def with_strides(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """x with other strides, over a storage that is large enough; the gaps hold NaN."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    storage = torch.full((size + max(strides),), torch.nan).to(x.dtype)
    view = storage.as_strided(x.shape, strides)
    view.copy_(x)
    return view


def one_pool(x: AttentionProblem) -> tuple[Tensor, Tensor]:
    """K and V as views of one [num_blocks, 2, block_size, num_kv_heads, head_dim] pool."""
    pool = torch.stack([x.k_cache, x.v_cache], dim=1)
    return pool[:, 0], pool[:, 1]


def attend(x: AttentionProblem, **change: Tensor) -> Tensor:
    arguments: dict[str, Any] = {"q": x.q, "k_cache": x.k_cache, "v_cache": x.v_cache}
    out = treeattn.tree_attention(**(arguments | change), plan=x.plan)
    assert isinstance(out, Tensor)
    return out


@DTYPES
def test_fused_rows_and_one_pool(dtype: torch.dtype, cpu_isa: str) -> None:
    x = AttentionCase("", trees=(30,), context_lens=(50,), dtype=dtype).make("cpu")
    expected = attend(x)
    k_cache, v_cache = one_pool(x)
    q = fused(x.q, 0, 4)
    by_head = x.q.transpose(0, 1).contiguous().transpose(0, 1)
    for query in (q, fused(x.q, 3, 1), by_head):
        assert not query.is_contiguous()
        assert same_bits(attend(x, q=query, k_cache=k_cache, v_cache=v_cache), expected)
    out = fused(torch.zeros_like(x.q), 1, 2)
    assert attend(x, out=out, q=q) is out and same_bits(out, expected)


@DTYPES
def test_one_row_with_any_stride(dtype: torch.dtype, cpu_isa: str) -> None:
    """q of shape [1, 32, 128] cut from a row of 4608: packed, but for a stride nobody uses."""
    case = AttentionCase("", (1,), (70,), num_qo_heads=32, num_kv_heads=2, head_dim=128)
    x = case.with_(dtype=dtype).make("cpu")
    expected = attend(x)
    for stride in (4608, 1, 0, 2**40):
        q = x.q.contiguous().as_strided((1, 32, 128), (stride, 128, 1))
        assert same_bits(attend(x, q=q), expected)
        out = torch.full_like(x.q, torch.nan).as_strided((1, 32, 128), (stride, 128, 1))
        attend(x, q=q, out=out)
        assert same_bits(out, expected)


@DTYPES
def test_pools_of_one_head_and_blocks_of_one_row(dtype: torch.dtype, cpu_isa: str) -> None:
    case = AttentionCase("", (9,), (21,), num_qo_heads=3, num_kv_heads=1, block_size=1)
    x = case.with_(dtype=dtype).make("cpu")
    expected = attend(x)
    for row, head in ((1, 1), (0, 7), (2**40, 3), (64, 2**40)):
        k_cache, v_cache = (
            pool.as_strided(pool.shape, (64, row, head, 1)) for pool in (x.k_cache, x.v_cache)
        )
        assert same_bits(attend(x, k_cache=k_cache, v_cache=v_cache), expected)
        k, v = torch.randn(2, 9, 1, 64).to(dtype)
        treeattn.write_kv(k, v, k_cache, v_cache, x.plan.slot_mapping)
        at = x.plan.slot_mapping
        assert same_bits(x.k_cache[at, 0], k) and same_bits(x.v_cache[at, 0], v)
        expected = attend(x)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
def test_head_dim_must_be_dense(name: str, cpu_isa: str) -> None:
    x = AttentionCase("").make("cpu")
    spread = getattr(x, name).repeat_interleave(2, dim=-1)[..., ::2]
    with pytest.raises(ValueError, match=f"tree_attention: {name} must be contiguous"):
        attend(x, **{name: spread})


def test_rows_to_write(cpu_isa: str) -> None:
    x = AttentionCase("", trees=(9,)).make("cpu")
    k, v = torch.randn(2, 9, 2, 64)
    packed, strided = (
        [x.k_cache.clone(), x.v_cache.clone()],
        [pool.clone() for pool in one_pool(x)],
    )
    treeattn.write_kv(k, v, *packed, x.plan.slot_mapping)
    by_head = v.transpose(0, 1).contiguous().transpose(0, 1)
    every_other = x.plan.slot_mapping.repeat_interleave(2)[::2]
    with pytest.raises(ValueError, match="write_kv: slot_mapping must be contiguous"):
        treeattn.write_kv(k, v, *packed, every_other)
    treeattn.write_kv(fused(k, 4, 2), by_head, *strided, x.plan.slot_mapping)
    for a, b in zip(packed, strided, strict=True):
        assert same_bits(a, b)
    one = k[:1].expand(9, -1, -1)  # stride 0: every node the same row
    treeattn.write_kv(one, one, *packed, x.plan.slot_mapping)
    treeattn.write_kv(one.contiguous(), one.contiguous(), *strided, x.plan.slot_mapping)
    for a, b in zip(packed, strided, strict=True):
        assert same_bits(a, b)


def test_pools_to_remap() -> None:
    x = AttentionCase("", trees=((-1, 0, 0, 1, 2, 4),), context_lens=(9,)).make("cpu")
    accepted = accepted_path([[0, 2, 4, 5]], x.plan.max_depth + 1)
    strided = [pool.transpose(1, 2).contiguous().transpose(1, 2) for pool in one_pool(x)]
    views = one_pool(x)
    assert treeattn.remap_kv([x.k_cache], [x.v_cache], x.plan, accepted).tolist() == [3]
    for k_cache, v_cache in (strided, views):
        treeattn.remap_kv([k_cache], [v_cache], x.plan, accepted)
        assert same_bits(k_cache, x.k_cache) and same_bits(v_cache, x.v_cache)


def test_logits_and_sampling_parameters(cpu_isa: str) -> None:
    x = AttentionCase("", trees=(6, 5), context_lens=(3, 8)).make("cpu")
    logits, tokens = torch.randn(11, 50), torch.arange(11)
    options: dict[str, Any] = {"rule": "target", "seeds": 7, "top_p": 0.9}

    def accept(rows: Tensor, temperature: Tensor) -> treeattn.AcceptedPath:
        return treeattn.accept_path(rows, tokens, x.plan, temperature=temperature, **options)

    def same(a: treeattn.AcceptedPath, b: treeattn.AcceptedPath) -> bool:
        names = ("path", "num_accepted", "next_tokens", "status", "emitted")
        return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)

    packed = accept(logits, torch.tensor([0.7, 0.7]))
    assert same(accept(logits, torch.tensor([0.7]).expand(2)), packed)  # stride 0
    assert same(accept(logits, torch.tensor([0.7, 9.0, 0.7])[::2]), packed)
    assert same(accept(with_strides(logits, (64, 1)), torch.tensor([0.7, 0.7])), packed)
    with pytest.raises(ValueError, match="accept_path: logits must be contiguous from dimension 1"):
        accept(logits.t().contiguous().t(), torch.tensor([0.7, 0.7]))


def test_block_table_of_a_wider_table() -> None:
    x = AttentionCase("", trees=(9, 4), context_lens=(33, 60)).make("cpu")
    expected = attend(x)
    wide = torch.full((4, 11), 2**30, dtype=torch.int32)
    columns = x.plan.block_table.shape[1]
    wide[::2, 2 : 2 + columns] = x.plan.block_table
    for table in (wide[::2, 2 : 2 + columns], x.plan.block_table.t().contiguous().t()):
        plan = treeattn.plan_tree(
            x.plan.parents,
            x.plan.node_indptr,
            x.plan.context_lens,
            table,
            block_size=16,
            num_qo_heads=4,
            num_kv_heads=2,
        )
        again = AttentionProblem(x.q, x.k_cache, x.v_cache, plan)
        assert same_bits(attend(again), expected)
