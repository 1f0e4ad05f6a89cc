# SPDX-License-Identifier: Apache-2.0
"""A naive model of BlockPool that predicts every answer and also follows the KV rows.

It learns from the pool only which of several equally good free blocks was taken. Each KV row holds
a value that stands for the whole token prefix it was computed from, so a row that is lost, shared
too long or overwritten shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from treeattn.kv_cache import BlockPool, OutOfBlocks

GARBAGE = -1


@dataclass
class ModelSequence:
    tokens: list[int]
    reserved: int = 0
    table: list[int] = field(default_factory=list)


class PoolModel:
    """A BlockPool and its model, driven together; every method checks both."""

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool) -> None:
        self.pool = BlockPool(num_blocks, block_size, prefix_cache)
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.sequences: dict[int, ModelSequence] = {}
        self.empty = set(range(num_blocks))
        self.lru: list[int] = []  # cached, without owner
        self.cached: dict[tuple[int, ...], int] = {}
        self.rows = [[GARBAGE] * block_size for _ in range(num_blocks)]
        self.num_operations = 0
        self.num_hits = 0
        self.num_evictions = 0
        self.num_copies = 0
        self.num_refusals = 0

    # Operations ---------------------------------------------------------------------------------

    def create(self, seq: int, tokens: list[int]) -> None:
        hits = self._hits(tokens)
        idle = sum(block in self.lru for block in hits)
        needed = self._blocks_for(len(tokens)) - len(hits)
        if needed > self.num_free - idle:
            self.refuse(OutOfBlocks, lambda: self.pool.create(seq, tokens))
            return
        assert self.pool.create(seq, tokens) == len(hits) * self.block_size
        sequence = self.sequences[seq] = ModelSequence(tokens)
        self.lru = [block for block in self.lru if block not in hits]
        table = self.pool.block_table(seq)
        assert table[: len(hits)] == hits
        sequence.table = hits + [self._take(block) for block in table[len(hits) :]]
        self._write(sequence, len(hits) * self.block_size)
        self.num_hits += len(hits)
        self.verify()

    def reserve(self, seq: int, num_nodes: int) -> None:
        sequence = self.sequences[seq]
        length = len(sequence.tokens)
        tail = length // self.block_size
        copies = (
            num_nodes > 0 and length % self.block_size != 0 and self._refs(sequence.table[tail]) > 1
        )
        wanted = self._blocks_for(length + num_nodes)
        if wanted - len(sequence.table) + copies > self.num_free:
            self.refuse(OutOfBlocks, lambda: self.pool.reserve(seq, num_nodes))
            return
        pairs = self.pool.reserve(seq, num_nodes)
        self._truncate(sequence, wanted)
        table = self.pool.block_table(seq)
        sequence.table += [self._take(block) for block in table[len(sequence.table) :]]
        sequence.reserved = num_nodes
        if copies:
            source, target = sequence.table[tail], table[tail]
            assert pairs == [(source, target)]
            sequence.table[tail] = self._take(target)
            self.rows[target] = list(self.rows[source])
            self.num_copies += 1
        else:
            assert pairs == []
        for slot in range(length, length + num_nodes):  # the draft is written
            self.rows[table[slot // self.block_size]][slot % self.block_size] = GARBAGE
        self.verify()

    def commit(self, seq: int, tokens: list[int], shift: int = 0) -> None:
        """`shift` rotates the blocks that remap_kv may swap; 0 passes no row."""
        sequence = self.sequences[seq]
        if len(tokens) > sequence.reserved:
            self.refuse(ValueError, lambda: self.pool.commit(seq, tokens))
            return
        fixed = self._blocks_for(len(sequence.tokens))
        free_part = sequence.table[fixed:]
        if shift > 0 and free_part:
            shift %= len(free_part)
            sequence.table[fixed:] = free_part[shift:] + free_part[:shift]
            self.pool.commit(seq, tokens, sequence.table)
        else:
            self.pool.commit(seq, tokens)
        start = len(sequence.tokens)
        sequence.tokens = sequence.tokens + tokens
        sequence.reserved = 0
        self._write(sequence, start)
        self._truncate(sequence, self._blocks_for(len(sequence.tokens)))
        self.verify()

    def fork(self, seq: int, new_seq: int) -> None:
        sequence = self.sequences[seq]
        self.pool.fork(seq, new_seq)
        sequence.reserved = 0
        self._truncate(sequence, self._blocks_for(len(sequence.tokens)))
        self.sequences[new_seq] = ModelSequence(sequence.tokens, table=list(sequence.table))
        self.verify()

    def free(self, seq: int) -> None:
        self.pool.free(seq)
        self._truncate(self.sequences.pop(seq), 0, owner_gone=True)
        self.verify()

    def refuse(self, error: type[Exception], call: Callable[[], object]) -> None:
        """`call` must raise and change nothing."""
        with pytest.raises(error):
            call()
        self.num_refusals += 1
        self.verify()

    def refuse_misuse(self, seq: int, kind: int) -> None:
        """One of the calls that are wrong whatever the state; `seq` exists, 1000 does not."""
        pool, row = self.pool, self.sequences[seq].table
        calls: list[tuple[type[Exception], Callable[[], object]]] = [
            (ValueError, lambda: pool.create(seq, [1])),
            (ValueError, lambda: pool.create(-1, [1])),
            (ValueError, lambda: pool.reserve(seq, -1)),
            (ValueError, lambda: pool.fork(seq, seq)),
            (ValueError, lambda: pool.commit(seq, [], [*row, 0])),
            (ValueError, lambda: pool.commit(seq, [], [*row[:-1], len(self.rows)])),
            (KeyError, lambda: pool.fork(1000, 1001)),
            (KeyError, lambda: pool.reserve(1000, 1)),
            (KeyError, lambda: pool.commit(1000, [])),
            (KeyError, lambda: pool.free(1000)),
        ]
        self.refuse(*calls[kind % len(calls)])

    # What must hold after each operation --------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self.empty) + len(self.lru)

    def verify(self) -> None:
        self.num_operations += 1
        self.pool.check()
        assert self.pool.num_free == self.num_free
        for seq, sequence in self.sequences.items():
            assert self.pool.block_table(seq) == sequence.table
            assert self.pool.context_len(seq) == len(sequence.tokens)
            assert self._read(sequence) == prefix_values(sequence.tokens)
        for block in range(len(self.rows)):
            assert self.pool.ref_count(block) == self._refs(block)

    # The model ----------------------------------------------------------------------------------

    def _refs(self, block: int) -> int:
        return sum(block in sequence.table for sequence in self.sequences.values())

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _hits(self, tokens: Sequence[int]) -> list[int]:
        hits: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            block = self.cached.get(tuple(tokens[:end]))
            if block is None:
                break
            hits.append(block)
        return hits

    def _take(self, block: int) -> int:
        """The pool has taken `block`; it had to be an empty one, or the oldest cached one."""
        if self.empty:
            self.empty.remove(block)
        else:
            assert block == self.lru.pop(0)
            self.cached = {key: b for key, b in self.cached.items() if b != block}
            self.num_evictions += 1
        self.rows[block] = [GARBAGE] * self.block_size
        return block

    def _truncate(self, sequence: ModelSequence, length: int, owner_gone: bool = False) -> None:
        others = 0 if owner_gone else 1
        while len(sequence.table) > length:
            block = sequence.table[-1]
            if self._refs(block) == others:
                if block in self.cached.values():
                    self.lru.append(block)
                else:
                    self.empty.add(block)
            sequence.table.pop()

    def _write(self, sequence: ModelSequence, start: int) -> None:
        """The KV of the tokens from `start` on is written; the blocks they fill are cached."""
        values = prefix_values(sequence.tokens)
        for slot in range(start, len(values)):
            block = sequence.table[slot // self.block_size]
            self.rows[block][slot % self.block_size] = values[slot]
        if self.prefix_cache:
            for i in range(start // self.block_size, len(values) // self.block_size):
                key = tuple(sequence.tokens[: (i + 1) * self.block_size])
                self.cached.setdefault(key, sequence.table[i])

    def _read(self, sequence: ModelSequence) -> list[int]:
        return [
            self.rows[sequence.table[slot // self.block_size]][slot % self.block_size]
            for slot in range(len(sequence.tokens))
        ]


def prefix_values(tokens: Sequence[int]) -> list[int]:
    values: list[int] = []
    value = 0
    for token in tokens:
        value = hash((value, token))
        values.append(value)
    return values
