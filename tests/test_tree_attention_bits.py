# SPDX-License-Identifier: Apache-2.0
"""What must never change a single bit of a row: everything but its own path.

That a row equals the one-row decode of its path is tested in test_tree_attention.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from support.logical import Request, attend, lay_out, per_request, random_request, same_bits
from support.trees import random_parents
from torch import Tensor

MACHINES = "host"

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
CONTEXTS = (0, 1, 63, 64, 65, 200)


def requests(dtype: torch.dtype) -> Iterator[Request]:
    """Trees of every shape at the edges of key tiles, with one and with seven rows per head."""
    for seed, context_len in enumerate(CONTEXTS):
        for branching in (0.0, 0.5, 1.0):
            parents = random_parents(random.Random(seed), 75, branching)
            num_qo_heads = 2 if seed % 2 else 14
            yield random_request(seed, parents, context_len, num_qo_heads=num_qo_heads, dtype=dtype)


def alone(request: Request, block_size: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    return attend(lay_out([request], block_size, seed=seed, batch_invariant=True))


def assert_same_rows(
    got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], request: Request
) -> None:
    count = len(wanted[0])
    for a, b in zip(got, wanted, strict=True):
        bad = [i for i in range(count) if not same_bits(a[i], b[i])]
        assert not bad, f"rows {bad} of {request.parents} at context {request.context_len}"


@DTYPES
def test_where_blocks_lie(dtype: torch.dtype, cpu_isa: str) -> None:
    for request in requests(dtype):
        expected = alone(request)
        for seed in (1, 2):
            assert_same_rows(alone(request, seed=seed), expected, request)


@DTYPES
def test_block_size(dtype: torch.dtype, cpu_isa: str) -> None:
    for request in requests(dtype):
        expected = alone(request)
        for block_size in (1, 3, 8, 64, 128):
            assert_same_rows(alone(request, block_size), expected, request)


@DTYPES
def test_more_branches(dtype: torch.dtype, machine: str, cpu_isa: str) -> None:
    """Nodes appended to a tree, anywhere in it, leave the rows that were there alone."""
    if machine != "cpu" and dtype != torch.float32:
        pytest.skip("tensor cores add up a tree's keys in the order of its row tile")
    for request in requests(dtype):
        expected = alone(request)
        for count in (1, 40):
            rng = random.Random(count)
            parents = request.parents + [rng.randrange(75) for _ in range(count)]
            more = random_request(9, parents, request.context_len, num_qo_heads=2, dtype=dtype)
            q = torch.cat([request.q, more.q[:count, :1].expand(-1, request.q.shape[1], -1)])
            k, v = (
                torch.cat([a, b[:count]]) for a, b in ((request.k, more.k), (request.v, more.v))
            )
            assert_same_rows(alone(Request(parents, q, k, v)), expected, request)


@DTYPES
def test_batch_mates(dtype: torch.dtype, cpu_isa: str) -> None:
    for request in requests(dtype):
        expected = alone(request)
        heads = request.q.shape[1]
        mates = [
            random_request(seed, tree, context_len, num_qo_heads=heads, dtype=dtype)
            for seed, tree, context_len in (
                (20, [-1], 300),
                (21, [], 17),
                (22, random_parents(random.Random(3), 130), 0),
            )
        ]
        for place in (0, 2, 3):
            batch = [*mates[:place], request, *mates[place:]]
            x = lay_out(batch, 16, seed=place, batch_invariant=True)
            out, lse = (per_request(x, rows)[place] for rows in attend(x))
            assert_same_rows((out, lse), expected, request)


@DTYPES
def test_number_of_threads(dtype: torch.dtype, machine: str, cpu_isa: str) -> None:
    if machine != "cpu":
        pytest.skip("threads are the CPU's")
    threads = torch.get_num_threads()
    try:
        for request in requests(dtype):
            torch.set_num_threads(1)
            expected = alone(request)
            torch.set_num_threads(2)
            assert_same_rows(alone(request), expected, request)
    finally:
        torch.set_num_threads(threads)
