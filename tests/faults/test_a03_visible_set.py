# SPDX-License-Identifier: Apache-2.0
"""A03: the tree mask on every path. Q = K = 0 makes all weights equal and V's rows say which slot
they are, so the visible set of each row can be read from its output.

K and V heads carry different probes of the same slots. A "unit" probe gives each slot of a window
a column of its own: the output is exactly 1/n at the slots a row sees and 0 elsewhere. Where the
context is longer than the windows, two "count" probes put slot s into column s // width and
s % 64: the output times n is the number of seen slots per column.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from support.logical import Request, attend, lay_out
from support.trees import random_parents
from torch import Tensor

MACHINES = "host"

HEAD_DIM = 64
CONTEXTS = (0, 1, 31, 32, 33, 63, 64, 127, 128, 129, 255, 256, 257, 511, 512, 513, 4096)
GROUPS = (1, 4, 7, 8)
LONG_GROUPS = (1, 7)  # from 255 on: how a group fills its tiles is seen at the shorter contexts
TREES = {
    "page": [-1, 0, 0, 1, 2],
    "bushy": random_parents(random.Random(0), 100, 1.0),
    "chain": list(range(-1, 69)),
}
# Query dtype, pool dtype, and how far one rounding of a count may lie off.
DTYPES = {
    "fp32": (torch.float32, torch.float32, 2**-22),
    "fp16": (torch.float16, torch.float16, 2**-10),
    "bf16": (torch.bfloat16, torch.bfloat16, 2**-7),
    "fp8": (torch.bfloat16, torch.float8_e4m3fn, 2**-7),
}


@dataclass(frozen=True)
class Probe:
    columns: Tensor  # [total] column of each slot, -1: its V row is 0
    exact: bool  # one slot per column


def probes_for(context_len: int, num_nodes: int) -> list[Probe]:
    total = context_len + num_nodes
    slots = torch.arange(total)

    def unit(start: int) -> Probe:
        inside = (slots >= start) & (slots < start + HEAD_DIM)
        return Probe(torch.where(inside, slots - start, -1), True)

    if total <= 4 * HEAD_DIM:
        return [unit(start) for start in range(0, total, HEAD_DIM)]
    tail = range(total - HEAD_DIM, context_len - HEAD_DIM, -HEAD_DIM)  # the tree, and before it
    width = -(-total // HEAD_DIM)
    counts = [Probe(slots // width, False), Probe(slots % HEAD_DIM, False)]
    return [*(unit(start) for start in tail), *counts]


def seen_slots(parents: list[int], context_len: int) -> Tensor:
    """[n, total] bool, straight from the definition."""
    seen = torch.zeros(len(parents), context_len + len(parents), dtype=torch.bool)
    seen[:, :context_len] = True
    for node in range(len(parents)):
        ancestor = node
        while ancestor >= 0:
            seen[node, context_len + ancestor] = True
            ancestor = parents[ancestor]
    return seen


def one_hot(columns: Tensor) -> Tensor:
    return (columns[:, None] == torch.arange(HEAD_DIM)).double()


@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_visible_set(
    parents: list[int], dtypes: tuple[torch.dtype, torch.dtype, float], cpu_isa: str
) -> None:
    q_dtype, pool_dtype, rounding = dtypes
    for context_len in CONTEXTS:
        probes = probes_for(context_len, len(parents))
        v = torch.stack([one_hot(p.columns) for p in probes], dim=1).to(pool_dtype)
        seen = seen_slots(parents, context_len)
        num_seen = seen.sum(1).float()
        for group in GROUPS if context_len < 255 else LONG_GROUPS:
            q = torch.zeros(len(parents), len(probes) * group, HEAD_DIM, dtype=q_dtype)
            x = lay_out([Request(parents, q, torch.zeros_like(v), v)], 16, seed=context_len)
            out, lse = attend(x)
            where = f"context {context_len}, group {group}"
            assert (lse - num_seen.log()[:, None]).abs().max() <= 1e-5, where
            for index, probe in enumerate(probes):
                rows = out[:, index * group : (index + 1) * group]
                counts = (seen.double() @ one_hot(probe.columns)).float()[:, None]
                if probe.exact:
                    assert counts.max() <= 1
                    assert torch.equal(
                        rows, (counts / num_seen[:, None, None]).to(q_dtype).expand_as(rows)
                    ), where
                    continue
                error = (rows.float() * num_seen[:, None, None] - counts).abs()
                assert (error <= rounding * counts).all(), where


def test_the_numbers_of_the_fault(cpu_isa: str) -> None:
    """Context 2: node 3 sees {0, 1, 2, 3, 5} and node 4 {0, 1, 2, 4, 6}, each with 1/5."""
    v = torch.zeros(7, 1, HEAD_DIM)
    v[torch.arange(7), 0, torch.arange(7)] = 1.0
    q = torch.zeros(5, 1, HEAD_DIM)
    out, _ = attend(lay_out([Request(TREES["page"], q, torch.zeros_like(v), v)], 16))
    fifth = torch.tensor(0.2)
    for node, slots in ((3, [0, 1, 2, 3, 5]), (4, [0, 1, 2, 4, 6])):
        expected = torch.zeros(HEAD_DIM)
        expected[slots] = fifth
        assert torch.equal(out[node, 0], expected)
