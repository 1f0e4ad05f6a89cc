# SPDX-License-Identifier: Apache-2.0
"""BlockPool against a naive model, `check()` after each of more than 20,000 operations."""

from __future__ import annotations

import random

import pytest
from block_pool_model import PoolModel
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

MAX_SEQUENCES = 6
SHARED_PROMPT = [0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0] * 3  # many prompts start alike


def prompt(length: int, tail: list[int]) -> list[int]:
    return SHARED_PROMPT[:length] + tail


class BlockPoolMachine(RuleBasedStateMachine):
    """Hypothesis looks for the shortest sequence of operations that breaks the pool."""

    @initialize(
        num_blocks=st.integers(1, 14), block_size=st.sampled_from([1, 2, 3, 4]), cache=st.booleans()
    )
    def start(self, num_blocks: int, block_size: int, cache: bool) -> None:
        self.model = PoolModel(num_blocks, block_size, cache)
        self.next_seq = 0

    def pick(self, choice: int) -> int:
        alive = sorted(self.model.sequences)
        return alive[choice % len(alive)]

    def new_seq(self) -> int:
        self.next_seq += 1
        return self.next_seq

    def has_room(self) -> bool:
        return len(self.model.sequences) < MAX_SEQUENCES

    def has_sequences(self) -> bool:
        return len(self.model.sequences) > 0

    @precondition(has_room)
    @rule(length=st.integers(0, 20), tail=st.lists(st.integers(0, 1), max_size=3))
    def create(self, length: int, tail: list[int]) -> None:
        self.model.create(self.new_seq(), prompt(length, tail))

    @precondition(has_sequences)
    @rule(choice=st.integers(0, 5), num_nodes=st.integers(0, 12))
    def reserve(self, choice: int, num_nodes: int) -> None:
        self.model.reserve(self.pick(choice), num_nodes)

    @precondition(has_sequences)
    @rule(
        choice=st.integers(0, 5),
        tokens=st.lists(st.integers(0, 1), max_size=8),
        shift=st.integers(0, 3),
    )
    def commit(self, choice: int, tokens: list[int], shift: int) -> None:
        self.model.commit(self.pick(choice), tokens, shift)

    @precondition(lambda self: self.has_room() and self.has_sequences())
    @rule(choice=st.integers(0, 5))
    def fork(self, choice: int) -> None:
        self.model.fork(self.pick(choice), self.new_seq())

    @precondition(has_sequences)
    @rule(choice=st.integers(0, 5))
    def free(self, choice: int) -> None:
        self.model.free(self.pick(choice))

    @precondition(has_sequences)
    @rule(choice=st.integers(0, 5), kind=st.integers(0, 9))
    def misuse(self, choice: int, kind: int) -> None:
        self.model.refuse_misuse(self.pick(choice), kind)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(
    max_examples=600,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

WALKS = {
    "tight-cached": (9, 2, True),
    "tight-plain": (9, 2, False),
    "block-1": (24, 1, True),
    "block-4": (16, 4, True),
    "roomy-block-16": (12, 16, True),
}
OPERATIONS_PER_WALK = 6000


@pytest.mark.parametrize("name", WALKS)
def test_random_walk(name: str) -> None:
    """Long lives, where blocks are evicted, shared and reused many times."""
    rng = random.Random(name)
    num_blocks, block_size, prefix_cache = WALKS[name]
    model = PoolModel(num_blocks, block_size, prefix_cache)
    next_seq = 0
    while model.num_operations < OPERATIONS_PER_WALK:
        alive = sorted(model.sequences)
        roll = rng.random()
        if not alive or (roll < 0.2 and len(alive) < MAX_SEQUENCES):
            length = rng.randrange(min(36, 2 * block_size * num_blocks // 3))
            model.create(next_seq, prompt(length, [rng.randrange(2) for _ in range(3)]))
            next_seq += 1
        elif roll < 0.45:
            model.reserve(rng.choice(alive), rng.randrange(3 * block_size + 2))
        elif roll < 0.75:
            seq = rng.choice(alive)
            count = rng.randint(0, model.sequences[seq].reserved + (rng.random() < 0.1))
            model.commit(seq, [rng.randrange(2) for _ in range(count)], rng.randrange(4))
        elif roll < 0.83 and len(alive) < MAX_SEQUENCES:
            model.fork(rng.choice(alive), next_seq)
            next_seq += 1
        elif roll < 0.97:
            model.free(rng.choice(alive))
        else:
            model.refuse_misuse(rng.choice(alive), rng.randrange(10))
    assert model.num_operations >= OPERATIONS_PER_WALK
    assert model.num_refusals > 100
    assert model.num_copies > 10 or block_size == 1
    assert model.num_hits > 100 or not prefix_cache
    assert model.num_evictions > 100 or not prefix_cache
    for seq in sorted(model.sequences):
        model.free(seq)
    assert model.pool.num_free == num_blocks


def test_the_walks_make_20000_operations() -> None:
    assert len(WALKS) * OPERATIONS_PER_WALK >= 20_000
