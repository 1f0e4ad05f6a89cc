# SPDX-License-Identifier: Apache-2.0
"""What the CUDA attention kernels do, as the emulator counts it, and how they share it out."""

from __future__ import annotations

import heapq
import math
import random

import pytest
import torch
import treeattn
from support import simt
from support.attention import assert_rows_close
from support.logical import Request, attend, lay_out, random_request, same_bits
from support.trees import random_parents
from support.wide import untouched_memory
from treeattn import _namespace, reference

HEAD_DIM = 64
MMA_PER_CHUNK = 2 * 2 * HEAD_DIM // 16  # for 16 rows and 16 keys: Q K^T and P V, 8 columns each


@pytest.fixture(autouse=True)
def emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    simt.use(monkeypatch, "forward")
    simt.take_counters()


def request(
    parents: list[int], context_len: int, *, group: int = 4, num_kv_heads: int = 1
) -> Request:
    return random_request(
        0,
        parents,
        context_len,
        num_qo_heads=group * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=HEAD_DIM,
        dtype=torch.bfloat16,
    )


def counted(requests: list[Request], **options: int | None) -> dict[str, int]:
    """The counters of one attention call."""
    x = lay_out(requests, 16)
    simt.take_counters()
    attend(x, **options)
    return simt.take_counters()


def best_first_tree(num_nodes: int, depth: int = 16) -> list[int]:
    """The most probable nodes below a root, when each level has the same peaky law."""
    gaps = [-math.log(p) for p in (0.6, 0.15, 0.08, 0.05, 0.03, 0.02, 0.01, 0.01)]
    parents: list[int] = []
    heap = [(0.0, -1, 0)]  # (cost of the path, parent, depth)
    while len(parents) < num_nodes:
        cost, parent, level = heapq.heappop(heap)
        node = len(parents)
        parents.append(parent)
        if level < depth:
            for gap in gaps:
                heapq.heappush(heap, (cost + gap, node, level + 1))
    return parents


@pytest.mark.parametrize(("num_nodes", "row_tiles"), [(4, 1), (16, 1), (32, 2)])
def test_prefix_bytes_are_read_once_per_row_tile(
    num_nodes: int, row_tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group's heads and up to 64 / G nodes share one pass over K and V."""
    monkeypatch.setattr(_namespace, "emulated_ctas", 1)  # merging reads states besides
    tree = random_parents(random.Random(0), num_nodes)
    context_len, num_kv_heads = 2048, 2
    read = [
        counted([request(tree, length, num_kv_heads=num_kv_heads)])["global_bytes_read"]
        for length in (0, context_len)
    ]
    floor = row_tiles * context_len * 2 * HEAD_DIM * 2 * num_kv_heads
    assert floor <= read[1] - read[0] <= 1.02 * floor


def test_prefix_tiles_run_no_mask_code() -> None:
    tree = random_parents(random.Random(0), 16)
    for context_len, tiles, masked in ((1024, 17, 1), (1000, 16, 1), (1023, 17, 2), (0, 1, 1)):
        counts = counted([request(tree, context_len)])
        assert (counts["tiles"], counts["masked_tiles"]) == (tiles, masked), context_len


def test_window_skips_tiles_and_masks_its_first() -> None:
    counts = counted([request([-1], 1024)], window=200)  # keys 825 .. 1024
    assert (counts["tiles"], counts["masked_tiles"]) == (5, 2)


@pytest.mark.parametrize(("group", "most_keys"), [(1, 48), (4, 32), (8, 32)])
def test_tree_work_follows_the_tree(group: int, most_keys: int) -> None:
    """In keys per 16 rows, and of the product of all nodes with all nodes. Without a group 16 rows
    are 16 nodes of a row tile of 64, whose keys lie between those of the other nodes."""
    num_nodes = 1024
    mma = counted([request(best_first_tree(num_nodes), 0, group=group)])["mma"]
    chunks = mma / MMA_PER_CHUNK
    row_sets = num_nodes * group / 16
    assert chunks * 16 / row_sets <= most_keys
    assert chunks / (row_sets * num_nodes / 16) <= 0.05


def test_chain_work_is_causal() -> None:
    num_nodes = 512
    mma = counted([request(list(range(-1, num_nodes - 1)), 0)])["mma"]
    dense = num_nodes * 4 / 16 * num_nodes / 16
    assert mma / MMA_PER_CHUNK <= 0.53 * dense


def test_no_bank_conflicts() -> None:
    """The eight rows that one ldmatrix reads lie in different banks: queries, K and V."""
    counts = counted([request(random_parents(random.Random(0), 33), 300)])
    assert counts["ldmatrix"] > 0
    assert counts["ldmatrix_conflicts"] == 0


def batch(dtype: torch.dtype, head_dim: int) -> list[Request]:
    """Few rows and many, no context and a long one, an inactive request."""
    shapes = ((7, 900), (70, 130), (0, 9), (1, 0), (33, 511), (3, 64))
    return [
        random_request(
            seed,
            random_parents(random.Random(seed), num_nodes, 0.4),
            context_len,
            num_qo_heads=6,
            num_kv_heads=2,
            head_dim=head_dim,
            dtype=dtype,
        )
        for seed, (num_nodes, context_len) in enumerate(shapes)
    ]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_any_number_of_ctas(head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the line of tiles is cut, no tile is done twice or forgotten."""
    x = lay_out(batch(torch.bfloat16, head_dim), 16)
    expected, expected_lse = reference.tree_attention(x.q, x.k_cache, x.v_cache, x.plan)
    tiles = set()
    for num_ctas in (1, 2, 3, 5, 8, 13, 64):
        monkeypatch.setattr(_namespace, "emulated_ctas", num_ctas)
        simt.take_counters()
        out, lse = attend(x)
        tiles.add(simt.take_counters()["tiles"])
        assert_rows_close(out, expected, 2e-2)
        assert_rows_close(lse, expected_lse, 1e-5)
        assert same_bits(attend(x)[0], out), "arrivals were not reset, or the merge has no order"
    assert len(tiles) == 1


def test_orders_of_threads_and_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    x = lay_out(batch(torch.bfloat16, 128), 16)
    monkeypatch.setattr(_namespace, "emulated_ctas", 7)
    simt.assert_same_in_every_order(lambda: attend(x))


@pytest.mark.parametrize("context_len", [4090, 4096, 8000])
def test_batch_invariant_parts(context_len: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain's rows equal one-row decodes, and mates and CTAs change nothing, over parts of 4096
    keys."""
    chain = request([-1, 0, 1, 2, 3, 4, 5, 6, 7], context_len)
    alone = [
        Request([-1], chain.q[[i]], chain.k[: context_len + i + 1], chain.v[: context_len + i + 1])
        for i in (0, 5, 8)
    ]
    mates = [request(random_parents(random.Random(1), 40), 300), chain, *alone]
    results = []
    for requests, num_ctas in ((mates, 5), (mates, 1), ([chain, *alone], 3)):
        monkeypatch.setattr(_namespace, "emulated_ctas", num_ctas)
        out, _ = attend(lay_out(requests, 16, batch_invariant=True))
        results.append(out[-12:])
    for result in results:
        assert same_bits(result, results[0])
        assert same_bits(result[9:], result[[0, 5, 8]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_strides_beyond_32_bits(dtype: torch.dtype) -> None:
    """Blocks, rows and heads that lie 2^31 elements apart."""
    x = lay_out([random_request(0, [-1, 0, 1, 1], 70, head_dim=HEAD_DIM, dtype=dtype)], 64)
    expected, _ = attend(x)
    num_blocks, size, heads, dim = x.k_cache.shape
    for strides in ((2**31, dim * heads, dim), (dim * heads * size, dim, 2**31)):
        wide = untouched_memory(2**31 * max(num_blocks, heads), dtype)
        pools = []
        for i, cache in enumerate((x.k_cache, x.v_cache)):
            pool = wide.as_strided(cache.shape, (*strides, 1), i * 2**20)
            pool.copy_(cache)
            pools.append(pool)
        out = treeattn.tree_attention(x.q, *pools, x.plan)
        assert isinstance(out, torch.Tensor) and same_bits(out, expected)
