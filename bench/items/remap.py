# SPDX-License-Identifier: Apache-2.0
"""R1: moving an accepted path in all layers. R2: paths that need no move, or only a new table."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import treeattn
from torch import Tensor

from bench import floors, row, trees
from bench.check import WrongResultError
from bench.models import LLAMA3_8B, SMOLLM2, Model
from bench.peers import remap as peers_
from bench.row import Row
from bench.session import Job, Session
from bench.timing import Work, compare

_CONTEXT = 100


@dataclass(frozen=True)
class RemapCase:
    """`path`: random (some branch of eagle-64), first_child, whole_block or worst."""

    model: Model
    batch: int
    accepted: int
    path: str = "random"

    @property
    def block_size(self) -> int:
        return 1 if self.path == "whole_block" else 16

    @property
    def label(self) -> str:
        return (
            f"{self.model.name} bf16, B {self.batch}, {self.accepted} accepted, {self.path} path, "
            f"blocks of {self.block_size}"
        )

    def tree(self) -> tuple[list[int], list[int]]:
        """(parents, accepted path with its root)."""
        if self.path == "first_child":  # depth-first order: the path is the first nodes
            return trees.chain(64), list(range(self.accepted + 1))
        if self.path == "worst":  # the last branch of many: no row is in place
            leaves = [-1] + [0] * 40
            tail = [0, *range(len(leaves), len(leaves) + self.accepted - 1)]
            return leaves + tail, [0, *range(len(leaves), len(leaves) + self.accepted)]
        parents = trees.make("eagle-64")
        depths = trees.depths(parents)
        deepest = [node for node, depth in enumerate(depths) if depth >= self.accepted]
        node = random.Random(self.accepted).choice(deepest)
        return parents, trees.path_to(parents, node)[: self.accepted + 1]


def jobs() -> list[Job]:
    cases = [
        ("R1", RemapCase(SMOLLM2, 1, 4), True),
        ("R1", RemapCase(SMOLLM2, 1, 8), False),
        ("R1", RemapCase(SMOLLM2, 8, 8), False),
        ("R1", RemapCase(SMOLLM2, 64, 8), False),
        ("R1", RemapCase(LLAMA3_8B, 1, 4), False),
        ("R1", RemapCase(LLAMA3_8B, 1, 8), True),
        ("R1", RemapCase(LLAMA3_8B, 8, 8), False),
        ("R2", RemapCase(SMOLLM2, 1, 8, "first_child"), True),
        ("R2", RemapCase(SMOLLM2, 1, 8, "whole_block"), True),
        ("R2", RemapCase(SMOLLM2, 1, 15, "worst"), False),
    ]
    return [_job(item, case, quick) for item, case, quick in cases]


def _job(item: str, case: RemapCase, quick: bool) -> Job:
    return Job(item, case.label, lambda session: [measure(session, item, case)], quick)


class _Problem:
    """All layers' K and V as [2 * layers, blocks, block_size, heads, dim], rows of random bits."""

    def __init__(self, case: RemapCase) -> None:
        parents, path = case.tree()
        model, batch, nodes = case.model, case.batch, len(parents)
        blocks = -(-(_CONTEXT + nodes) // case.block_size)
        generator = torch.Generator().manual_seed(batch)
        shape = (2 * model.num_layers, batch * blocks, case.block_size)
        heads = (model.num_kv_heads, model.head_dim)
        bits = torch.randint(
            -(2**15), 2**15, (*shape, *heads), dtype=torch.int16, generator=generator
        )
        self.planes = bits.view(torch.bfloat16)
        self.table = torch.randperm(batch * blocks, generator=generator, dtype=torch.int32)
        self.table = self.table.view(batch, blocks)
        self.first_table = self.table.clone()
        self.plan = treeattn.plan_tree(
            torch.tensor(parents * batch, dtype=torch.int32),
            torch.arange(0, batch * nodes + 1, nodes, dtype=torch.int32),
            torch.full((batch,), _CONTEXT, dtype=torch.int32),
            self.table,
            block_size=case.block_size,
            num_qo_heads=model.num_qo_heads,
            num_kv_heads=model.num_kv_heads,
        )
        width = self.plan.max_depth + 1
        padded = torch.tensor(path + [-1] * (width - len(path)), dtype=torch.int32)
        zeros = torch.zeros(batch, dtype=torch.int32)
        self.accepted = treeattn.AcceptedPath(
            path=padded.expand(batch, -1).contiguous(),
            num_accepted=zeros + case.accepted,
            next_tokens=zeros.long(),
            status=zeros,
            emitted=torch.zeros(batch, width, dtype=torch.int64),
        )
        self.sources = self.slots(path)
        self.targets = self.slots(range(len(path)))
        self.k, self.v = self.planes[: model.num_layers], self.planes[model.num_layers :]

    def slots(self, offsets: list[int] | range) -> Tensor:
        """Physical slots of the logical ones context + offset, all requests in turn."""
        logical = _CONTEXT + torch.tensor(list(offsets))
        blocks = self.table.long()[:, logical // self.plan.block_size]
        return (blocks * self.plan.block_size + logical % self.plan.block_size).flatten()

    def flat(self) -> Tensor:
        """[planes, slots, row] view."""
        return self.planes.flatten(1, 2).flatten(2)

    def restore_table(self) -> None:
        self.table.copy_(self.first_table)


def measure(session: Session, item: str, case: RemapCase) -> Row:
    """Every candidate brings the path into place bit by bit; then they are timed in turn."""
    calibration = session.calibration
    threads = calibration.threads[-1]
    x = _Problem(case)
    moving = x.sources != x.targets
    source, target = x.sources[moving], x.targets[moving]
    moved_rows = _check_ours(x)
    candidates = peers_.make(x.flat(), source, target) if len(source) else {}
    for name, peer in candidates.items():
        _check(name, x, peer, x.targets)
    x.restore_table()
    repoints = case.path == "whole_block"

    def ours() -> Tensor:
        return treeattn.remap_kv(x.k, x.v, x.plan, x.accepted)

    works = {"ours": Work(ours, x.restore_table if repoints else None)}
    works |= {name: Work(peer) for name, peer in candidates.items()}
    times = compare(works, threads=threads, effort=session.budget.effort())
    bytes_moved = moved_rows * x.flat()[0, 0].nbytes * len(x.planes)
    floor = floors.traffic(2.0 * bytes_moved, calibration.rates(threads))
    return row.make(
        item,
        f"{case.label}, {threads}T",
        times["ours"],
        floor,
        {name: times[name].median for name in candidates},
        params={
            "model": case.model.name,
            "batch": case.batch,
            "accepted": case.accepted,
            "path": case.path,
            "dtype": "bf16",
            "threads": threads,
            "isa": calibration.isa,
        },
        floor_valid=calibration.read[threads].steady,
        max_error=0.0,  # compared bit by bit
        extra={"bytes_moved": float(bytes_moved), "rows_moved": float(moved_rows)},
    )


def _check_ours(x: _Problem) -> int:
    """Rows that remap_kv says it moved, after a look at the rows themselves."""
    before = x.planes.view(torch.int16).clone()
    moved = 0

    def run() -> None:
        nonlocal moved
        moved = int(treeattn.remap_kv(x.k, x.v, x.plan, x.accepted).sum())

    _check("remap_kv", x, run, None)
    if moved == 0 and not torch.equal(before, x.planes.view(torch.int16)):
        raise WrongResultError("remap_kv: says that it moved nothing, but the caches changed")
    return moved


def _check(name: str, x: _Problem, run: Callable[[], object], targets: Tensor | None) -> None:
    """`targets`: where the rows must lie; None means where the table says after the run."""
    x.restore_table()
    expected = x.flat().view(torch.int16)[:, x.sources].clone()
    run()
    where = x.slots(range(int(x.accepted.num_accepted[0]) + 1)) if targets is None else targets
    if not torch.equal(x.flat().view(torch.int16)[:, where], expected):
        raise WrongResultError(f"{name}: the rows of the accepted path are not where they belong")
