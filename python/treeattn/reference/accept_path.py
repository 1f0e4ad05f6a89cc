# SPDX-License-Identifier: Apache-2.0
"""The accepted path of each tree, one node and one full row at a time, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treeattn.plan import TreePlan

OK, NON_FINITE, NO_TOKEN_LEFT, INACTIVE = 0, 1, 2, 3
DRAW = 0  # purpose of a random number, see csrc/include/treeattn/philox.h


@dataclass(frozen=True, eq=False)
class Accepted:
    """The fields of `treeattn.AcceptedPath`; same shapes and dtypes."""

    path: Tensor
    num_accepted: Tensor
    next_tokens: Tensor
    status: Tensor
    emitted: Tensor
    logprobs: Tensor | None


def accept_path(
    logits: Tensor,
    tokens: Tensor,
    plan: TreePlan,
    *,
    rule: str = "greedy",
    temperature: float | Tensor | None = None,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    seeds: int | Tensor | None = None,
    allowed: Tensor | None = None,
    uniforms: Tensor | None = None,
    return_logprobs: bool = False,
) -> Accepted:
    """As `treeattn.accept_path` for the rules greedy and target; nothing is checked."""
    num_requests, width = plan.num_requests, plan.max_depth + 1
    path = torch.full((num_requests, width), -1, dtype=torch.int32)
    emitted = torch.full((num_requests, width), -1, dtype=torch.int64)
    logprobs = torch.full((num_requests, width), math.nan)
    num_accepted = torch.zeros(num_requests, dtype=torch.int32)
    next_tokens = torch.full((num_requests,), -1, dtype=torch.int64)
    status = plan.status.clone()
    for b in range(num_requests):
        start, end = plan.node_indptr[b : b + 2].tolist()
        if int(plan.status[b]) != OK or start == end:
            continue
        parents, ids = plan.parents[start:end].tolist(), tokens[start:end].tolist()
        heat = float(_of(temperature, b, 1.0))
        node, path[b, 0] = 0, 0
        for depth in range(width):
            row = logits[start + node].double()
            mask = None if allowed is None else _mask(allowed[start + node], len(row))
            if rule == "greedy" or heat == 0:
                token, status[b] = argmax(row, mask)
            else:
                position = int(plan.context_lens[b]) + int(plan.depths[start + node])
                if uniforms is None:
                    uniform = philox(int(_of(seeds, b, 0)), position, 0, DRAW) * 2.0**-32
                else:
                    uniform = float(uniforms[start + node, 1])
                probs, status[b] = transformed(
                    row,
                    mask,
                    temperature=heat,
                    top_k=int(_of(top_k, b, 0)),
                    top_p=float(_of(top_p, b, 1.0)),
                    min_p=float(_of(min_p, b, 0.0)),
                )
                token = inverse_cdf(probs, uniform) if int(status[b]) == OK else -1
            if int(status[b]) != OK:
                break
            emitted[b, depth] = token
            logprobs[b, depth] = row.log_softmax(0)[token]
            children = [i for i, p in enumerate(parents) if p == node and ids[i] == token]
            if not children:
                next_tokens[b] = token
                break
            node = children[0]
            path[b, depth + 1] = node
            num_accepted[b] += 1
    return Accepted(
        path, num_accepted, next_tokens, status, emitted, logprobs if return_logprobs else None
    )


def argmax(row: Tensor, mask: Tensor | None) -> tuple[int, int]:
    """(lowest id of the largest allowed logit, status)."""
    row, status = _allowed_logits(row, mask)
    if status != OK:
        return -1, status
    return int((row == row.max()).nonzero()[0]), OK


def transformed(
    row: Tensor,
    mask: Tensor | None,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> tuple[Tensor, int]:
    """(the target's law after temperature, mask and filters, status)."""
    row, status = _allowed_logits(row, mask)
    if status != OK:
        return torch.zeros_like(row), status
    probs = ((row - row.max()) / temperature).softmax(0)
    by_rank = row.sort(descending=True, stable=True).indices
    if 0 < top_k < len(row):
        probs[by_rank[top_k:]] = 0
        probs = probs / probs.sum()
    if top_p < 1:
        mass = probs[by_rank].cumsum(0)
        shortest = int((mass < top_p).sum()) + 1
        probs[by_rank[shortest:]] = 0
        probs = probs / probs.sum()
    if min_p > 0:
        probs = torch.where(probs >= min_p * probs.max(), probs, 0)
    return probs / probs.sum(), OK


def inverse_cdf(probs: Tensor, uniform: float) -> int:
    """The smallest id whose cumulative probability exceeds `uniform`."""
    beyond = ((probs.cumsum(0) > uniform) & (probs > 0)).nonzero()
    return int(beyond[0]) if len(beyond) else int(probs.nonzero()[-1])


def philox(seed: int, position: int, ordinal: int, purpose: int) -> int:
    """First word of Philox4x32-10: key = the seed, counter = (position, ordinal, purpose, 0)."""
    word = 2**32
    key = [seed % word, seed // word % word]
    counter = [position % word, ordinal, purpose, 0]
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * counter[0], word)
        high_1, low_1 = divmod(0xCD9E8D57 * counter[2], word)
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
        key = [(key[0] + 0x9E3779B9) % word, (key[1] + 0xBB67AE85) % word]
    return counter[0]


def _allowed_logits(row: Tensor, mask: Tensor | None) -> tuple[Tensor, int]:
    if mask is not None:
        row = row.masked_fill(~mask, -math.inf)
    if bool(row.isnan().any()) or bool((row == math.inf).any()):
        return row, NON_FINITE
    return row, OK if bool((row > -math.inf).any()) else NO_TOKEN_LEFT


def _mask(words: Tensor, vocab_size: int) -> Tensor:
    bits = words[:, None].bitwise_right_shift(torch.arange(32, dtype=torch.int32)) & 1
    return bits.flatten()[:vocab_size].bool()


def _of(values: float | Tensor | None, request: int, default: float) -> float:
    if values is None:
        return default
    return values[request].item() if isinstance(values, Tensor) else values
