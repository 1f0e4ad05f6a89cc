# SPDX-License-Identifier: Apache-2.0
"""Whether sampled tokens have the law that a decoder gives them."""

from __future__ import annotations

from collections import Counter

import torch
from treeattn.decoder import Decoder

from support.tiny import chain_logits


def p_value(
    decoder: Decoder, prompt: list[int], temperature: float, seen: Counter[tuple[int, ...]]
) -> float:
    """Chi-square of the first two tokens after `prompt` against plain probabilities.

    seen: how often each pair was emitted. Pairs expected fewer than five times count together.
    """
    total = sum(seen.values())
    first = (chain_logits(decoder, prompt)[-1] / temperature).double().softmax(-1)
    expected: dict[tuple[int, ...], float] = {}
    for a in range(len(first)):
        if total * first[a] < 5:
            continue
        second = (chain_logits(decoder, [*prompt, a])[-1] / temperature).double().softmax(-1)
        for b in range(len(second)):
            if total * first[a] * second[b] >= 5:
                expected[(a, b)] = (total * first[a] * second[b]).item()
    assert len(expected) >= 8
    rest = total - sum(expected.values())
    observed_rest = total - sum(seen[cell] for cell in expected)
    statistic = sum((seen[cell] - count) ** 2 / count for cell, count in expected.items())
    statistic += (observed_rest - rest) ** 2 / rest
    degrees = torch.tensor(len(expected) / 2.0, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, half))
