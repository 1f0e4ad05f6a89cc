# SPDX-License-Identifier: Apache-2.0
"""Random numbers of `accept_path`: counter based, or given by a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

# Purposes of a random number, see csrc/include/treeattn/philox.h.
DRAW, RESIDUAL, BONUS, COIN = 0, 1, 2, 3


class Chance(Protocol):
    """Uniform numbers in [0, 1) for the nodes of one request."""

    def coin(self, node: int, ordinal: int) -> float: ...

    def uniform(self, node: int, purpose: int) -> float: ...


@dataclass(frozen=True)
class Seeded:
    """Coins keyed by the root's position and their ordinal in the step, draws by the node's."""

    seed: int
    positions: list[int]  # of the request's nodes

    def coin(self, node: int, ordinal: int) -> float:
        return philox(self.seed, self.positions[0], ordinal, COIN) * 2.0**-32

    def uniform(self, node: int, purpose: int) -> float:
        return philox(self.seed, self.positions[node], 0, purpose) * 2.0**-32


@dataclass(frozen=True, eq=False)
class Given:
    """The rows of `uniforms` [n, 2]: the coin for trying a node, the draw made at it."""

    rows: Tensor

    def coin(self, node: int, ordinal: int) -> float:
        return float(self.rows[node, 0])

    def uniform(self, node: int, purpose: int) -> float:
        return float(self.rows[node, 1])


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
