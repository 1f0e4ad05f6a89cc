# SPDX-License-Identifier: Apache-2.0
"""Trees deeper than a tile of 64 keys: the tiles that rows share although their paths differ.

There a row is multiplied with keys of other branches too, so these tests look at every bit.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from support.attention import live_slots
from support.logical import Request, attend, lay_out, random_request, same_bits
from torch import Tensor

MACHINES = "host"

TILE = 64
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# Tiles begin at depths that are even or odd, with context keys in the first one or without.
CONTEXTS = pytest.mark.parametrize("context_len", [0, 33, 94])


def deep_tree(context_len: int) -> list[int]:
    """Parents of a trunk over two ends of a tile, with short branches and twigs around each end:
    16 nodes that follow each other in depth-first order then see different keys of one tile."""
    first_end = TILE - context_len % TILE
    length = first_end + TILE + 5
    parents = list(range(-1, length - 1))
    for end in (first_end, first_end + TILE):
        for above, below in ((9, 1), (8, 3), (7, 0), (7, -6), (4, 2), (3, 2), (3, -2), (1, 1)):
            parents.append(end - above)
            parents += range(len(parents) - 1, len(parents) - 1 + above + below - 1)
    return parents


def paths_of(parents: list[int]) -> list[list[int]]:
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*paths[parent], node] if parent >= 0 else [node])
    return paths


def deep_request(dtype: torch.dtype, context_len: int) -> Request:
    parents = deep_tree(context_len)
    return random_request(
        context_len, parents, context_len, num_qo_heads=3, num_kv_heads=1, head_dim=40, dtype=dtype
    )


def seen_keys(x: Request, window: int | None = None) -> Tensor:
    """[n, context_len + n] bool: which logical keys of the request each node sees."""
    seen = torch.zeros(len(x.parents), len(x.k), dtype=torch.bool)
    for node, path in enumerate(paths_of(x.parents)):
        keys = [*range(x.context_len), *(x.context_len + i for i in path)]
        seen[node, keys if window is None else keys[-window:]] = True
    return seen


def assert_value_reaches_who_sees_it(
    x: Request, keys: Iterable[int], value: float, window: int | None = None
) -> None:
    """With `value` for the V row of each of the keys, one key after the other."""
    problem = lay_out([x], 16)
    clean, _ = attend(problem, window=window)
    seen = seen_keys(x, window)
    rows = problem.v_cache.flatten(0, 1)
    for key in keys:
        slot = live_slots(problem.plan, 0)[key]
        kept = rows[slot].clone()
        rows[slot] = value
        out, _ = attend(problem, window=window)
        rows[slot] = kept
        assert not out[seen[:, key]].isfinite().any(), key
        unseen = (~seen[:, key]).nonzero()[:, 0]
        assert same_bits(out[unseen], clean[unseen]), key


@DTYPES
@CONTEXTS
@pytest.mark.parametrize("window", [None, 100])
def test_row_equals_decoding_its_path(
    dtype: torch.dtype, context_len: int, window: int | None, machine: str, cpu_isa: str
) -> None:
    if machine != "cpu" and dtype != torch.float32:
        pytest.skip("tensor cores add up a tree's keys in the order of its row tile")
    x = deep_request(dtype, context_len)
    out, lse = attend(lay_out([x], 16), window=window)
    alone = []
    for node, path in enumerate(paths_of(x.parents)):
        keys = torch.tensor([*range(context_len), *(context_len + i for i in path)])
        alone.append(Request([-1], x.q[[node]], x.k[keys], x.v[keys]))
    expected, expected_lse = attend(lay_out(alone, 16), window=window)
    wrong = [i for i in range(len(alone)) if not same_bits(out[i], expected[i])]
    assert not wrong and same_bits(lse, expected_lse), wrong


@DTYPES
@CONTEXTS
@pytest.mark.parametrize("poison", [torch.nan, torch.inf], ids=str)
def test_values_of_other_branches_may_be_anything(
    dtype: torch.dtype, context_len: int, poison: float, cpu_isa: str
) -> None:
    """NaN and inf reach the rows that see them and no other, though one product has them all."""
    x = deep_request(dtype, context_len)
    end = 2 * TILE - context_len % TILE  # a depth
    depths = [len(path) - 1 for path in paths_of(x.parents)]
    nodes = [node for node, depth in enumerate(depths) if end - 10 <= depth < end]
    assert_value_reaches_who_sees_it(x, [context_len + node for node in nodes], poison)


@DTYPES
@CONTEXTS
def test_values_before_the_window_may_be_anything(
    dtype: torch.dtype, context_len: int, cpu_isa: str
) -> None:
    """The window begins inside a tile, for every other row between the two keys of a pair."""
    x = deep_request(dtype, context_len)
    keys = {0, 1, *range(max(0, context_len - 2), context_len + 50, 5)}
    assert_value_reaches_who_sees_it(x, keys, torch.nan, window=100)
