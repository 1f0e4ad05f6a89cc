# SPDX-License-Identifier: Apache-2.0
"""Bytes that a plan and an attention call take beyond their inputs and their result.

Plan: the bytes of its tensors that are not the caller's own. Attention: the peak of glibc's malloc
in use (arenas and mapped chunks, all threads) that a second thread sees while the op runs, minus
what was in use before; torch's CPU allocator and C++ `new` both end there. `out` is passed in.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import treeattn
from torch import Tensor

from bench import trees
from bench.models import LLAMA3_8B, Model
from bench.problem import Case, make_plan

SHORT, LONG = 1024, 32768
_RUNS = 5


@dataclass(frozen=True)
class Memory:
    """Bytes by context length, 64 nodes, 32/8 d128, fp32; attention None where malloc is mute."""

    plan: dict[int, int]
    attention: dict[int, int] | None

    def extra(self, ctx: int) -> int | None:
        return None if self.attention is None else self.plan[ctx] + self.attention[ctx]


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def malloc_in_use() -> Callable[[], int] | None:
    """A function that says how many bytes malloc has given out; None without glibc 2.33."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    mallinfo2.restype = _Mallinfo2

    def in_use() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return in_use


def peak_bytes(run: Callable[[], object], in_use: Callable[[], int]) -> int:
    """Peak of malloc in use while `run` runs (it must release the GIL), minus before."""
    peak, stop, watching = 0, threading.Event(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.is_set():
            peak = max(peak, in_use())
            watching.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    watching.wait()
    before = in_use()
    try:
        run()
    finally:
        stop.set()
        watcher.join()
    return max(0, peak - before)


def _in_fresh_thread(run: Callable[[], None]) -> Callable[[], None]:
    """A thread keeps its scratch between calls; a new one, and its workers, have none yet."""

    def start_and_wait() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return start_and_wait


def plan_bytes(plan: treeattn.TreePlan, inputs: list[Tensor]) -> int:
    """Bytes of the plan's storages that are not storages of `inputs`."""
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    storages = {}
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            if storage.data_ptr() not in known:
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def measure_memory(model: Model = LLAMA3_8B) -> Memory:
    """Plan and attention at a short and a long context."""
    plan: dict[int, int] = {}
    attention: dict[int, int] = {}
    in_use = malloc_in_use()
    for ctx in (SHORT, LONG):
        case = Case(model, ctx, "eagle-64", "fp32")
        parents = trees.make(case.tree)
        blocks = -(-(ctx + len(parents)) // case.block_size)
        table = torch.arange(blocks, dtype=torch.int32)[None]
        made = make_plan(case, parents, table)
        plan[ctx] = plan_bytes(made, [made.parents, made.node_indptr, made.context_lens, table])
        if in_use is None:
            continue
        pool = torch.zeros(blocks, case.block_size, model.num_kv_heads, model.head_dim)
        q = torch.zeros(len(parents), model.num_qo_heads, model.head_dim)
        out = torch.empty_like(q)

        def attend(
            q: Tensor = q, pool: Tensor = pool, made: treeattn.TreePlan = made, out: Tensor = out
        ) -> None:
            treeattn.tree_attention(q, pool, pool, made, out=out)

        attend()  # whatever happens once in a process
        attention[ctx] = max(peak_bytes(_in_fresh_thread(attend), in_use) for _ in range(_RUNS))
    return Memory(plan, attention if in_use else None)
