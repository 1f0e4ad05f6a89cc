# SPDX-License-Identifier: Apache-2.0
"""Dense-mask attention over contiguous KV.

Every peer needs contiguous keys and values, so with paged KV its time includes the gather, which
is measured on its own. Query packing and the mask are made ahead and cost the peers nothing. The
mask is additive in q's dtype: torch would convert a boolean one on every call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.problem import Problem

SDPA = ("sdpa_packed", "sdpa_gqa")
DENSE = (*SDPA, "eager_packed")
FLEX = "flex_attention"
MAX_SCORES_BYTES = 512 << 20  # eager materialises all scores


@dataclass(frozen=True)
class Peer:
    """`run` computes; `unpack` brings its result to [N, num_qo_heads, head_dim]."""

    run: Callable[[], Tensor]
    unpack: Callable[[Tensor], Tensor]


class Unavailable(RuntimeError):
    """Why a peer cannot run here, in words."""


class Gather:
    """Brings the blocks of one cache into contiguous [1, num_kv_heads, T, head_dim] K and V.

    Its buffers are made once: a fresh one would cost the peers a page fault per 4 KiB.
    """

    def __init__(self, problem: Problem) -> None:
        case, model = problem.case, problem.case.model
        self.problem = problem
        self.table = problem.plan.block_table[0]
        shape = (len(self.table), case.block_size, model.num_kv_heads, model.head_dim)
        self.blocks = problem.q.new_empty(shape)
        rows = self.blocks.flatten(0, 1)[: problem.num_keys]
        self.rows = rows.transpose(0, 1)  # [num_kv_heads, T, head_dim], in the blocks' order
        self.k = problem.q.new_empty(1, *self.rows.shape)
        self.v = torch.empty_like(self.k)

    def __call__(self, pool: int = 0) -> tuple[Tensor, Tensor]:
        for plane, target in zip(self.problem.pools[pool], (self.k, self.v), strict=True):
            torch.index_select(plane, 0, self.table, out=self.blocks)
            target[0].copy_(self.rows)
        return self.k, self.v


def make(problem: Problem, names: Iterable[str]) -> tuple[dict[str, Peer], dict[str, str]]:
    """(peers by name, reason by name of those that cannot run)."""
    inputs = _Inputs(problem)
    peers: dict[str, Peer] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            peers[name] = _MAKERS[name](inputs)
        except Unavailable as reason:
            skipped[name] = str(reason)
    return peers, skipped


class _Inputs:
    """What the peers share: gathered caches (rotated like ours), packed queries, masks."""

    def __init__(self, problem: Problem) -> None:
        model = problem.case.model
        self.problem = problem
        self.scale = model.head_dim**-0.5
        self.group, self.heads = model.group, model.num_kv_heads
        self.caches = [Gather(problem)(pool) for pool in range(len(problem.pools))]
        self.q = problem.q.transpose(0, 1)[None].contiguous()  # [1, num_qo_heads, N, head_dim]
        rows = problem.num_nodes * self.group  # packed row = node * group + head in group
        by_group = problem.q.view(-1, self.heads, self.group, model.head_dim)
        self.q_packed = by_group.transpose(0, 1).reshape(1, self.heads, rows, model.head_dim)
        seen = problem.mask()
        self.mask = torch.zeros(seen.shape, dtype=problem.q.dtype).masked_fill_(~seen, -math.inf)
        self.mask_packed = self.mask.repeat_interleave(self.group, 0)

    def turns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The caches in turn; each peer has its own turn, and begins with cache 0."""
        return itertools.cycle(self.caches)

    def unpack(self, out: Tensor) -> Tensor:
        nodes = out.reshape(self.heads, self.problem.num_nodes, self.group, -1)
        return nodes.permute(1, 0, 2, 3).flatten(1, 2)

    def unpack_heads(self, out: Tensor) -> Tensor:
        return out[0].transpose(0, 1)


def _sdpa_packed(x: _Inputs) -> Peer:
    mask, turns = x.mask_packed[None, None], x.turns()

    def run() -> Tensor:
        k, v = next(turns)
        return F.scaled_dot_product_attention(x.q_packed, k, v, attn_mask=mask)

    return Peer(run, x.unpack)


def _sdpa_gqa(x: _Inputs) -> Peer:
    mask, turns = x.mask[None, None], x.turns()

    def run() -> Tensor:
        k, v = next(turns)
        return F.scaled_dot_product_attention(x.q, k, v, attn_mask=mask, enable_gqa=True)

    return Peer(run, x.unpack_heads)


def _eager_packed(x: _Inputs) -> Peer:
    problem = x.problem
    scores_bytes = (
        problem.num_nodes
        * problem.case.model.num_qo_heads
        * problem.num_keys
        * problem.q.element_size()
    )
    if scores_bytes > MAX_SCORES_BYTES:
        raise Unavailable(
            f"its score matrix would take {scores_bytes >> 20} MiB, more than "
            f"{MAX_SCORES_BYTES >> 20}"
        )
    q, turns = x.q_packed[0], x.turns()

    def run() -> Tensor:
        k, v = next(turns)
        scores = torch.bmm(q * x.scale, k[0].mT).add_(x.mask_packed)
        return torch.bmm(scores.softmax(-1), v[0])

    return Peer(run, x.unpack)


def _flex(x: _Inputs) -> Peer:
    """FlexAttention through torch.compile, the ancestor mask as its mask_mod."""
    import torch._dynamo
    from torch._dynamo.exc import TorchDynamoException
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    seen, ctx = x.problem.visible(), x.problem.case.ctx
    n = x.problem.num_nodes

    def visible(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (key < ctx) | seen[row, (key - ctx).clamp(0, n - 1)]

    torch._dynamo.reset()  # every shape is compiled by itself
    mask = create_block_mask(visible, 1, 1, n, x.problem.num_keys, device="cpu")
    compiled = torch.compile(flex_attention, fullgraph=True)
    try:
        compiled(x.q, *x.caches[0], block_mask=mask, enable_gqa=True)
    except TorchDynamoException as error:  # of the backend too: no compiler, no kernel for this CPU
        raise Unavailable(
            f"torch.compile failed: {type(error).__name__}: {str(error).strip()[:200]}"
        ) from error
    turns = x.turns()

    def run() -> Tensor:
        out = compiled(x.q, *next(turns), block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out

    return Peer(run, x.unpack_heads)


_MAKERS: dict[str, Callable[[_Inputs], Peer]] = {
    "sdpa_packed": _sdpa_packed,
    "sdpa_gqa": _sdpa_gqa,
    "eager_packed": _eager_packed,
    FLEX: _flex,
}
