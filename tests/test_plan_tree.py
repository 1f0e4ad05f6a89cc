# SPDX-License-Identifier: Apache-2.0
"""plan_tree against the oracle, and every error that its inputs can raise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.paged import UNUSED_ENTRY, random_block_table
from support.trees import pack_parents, random_parents
from torch import Tensor
from treeattn import reference
from treeattn.plan import TreePlan, plan_tree

MACHINES = "host"

DERIVED = ("depths", "positions", "slot_mapping", "ancestors", "order", "status", "max_depth")


@dataclass(frozen=True)
class Case:
    name: str
    sizes: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_size: int = 4
    branching: float = 0.5
    dtype: torch.dtype = torch.int32
    custom_slots: bool = False
    capacity: int | None = None
    max_depth: int | None = None

    def __str__(self) -> str:
        return self.name

    def make(self, device: str = "cpu", seed: int = 0) -> dict[str, Any]:
        rng = random.Random(seed)
        trees = [random_parents(rng, size, self.branching) for size in self.sizes]
        parents, node_indptr = pack_parents(trees, self.dtype, self.capacity)
        slots = [
            (context_len + (0 if self.custom_slots else size)) if size else 0
            for size, context_len in zip(self.sizes, self.context_lens, strict=True)
        ]
        table = random_block_table(rng, slots, self.block_size, dtype=self.dtype)
        context_lens = torch.tensor(self.context_lens, dtype=self.dtype)
        context_lens[torch.tensor(self.sizes, dtype=torch.int64) == 0] = UNUSED_ENTRY
        slot_mapping = None
        if self.custom_slots:
            # Beyond every block of the tables, shuffled over the whole batch.
            free = list(range(10_000, 10_000 + len(parents)))
            rng.shuffle(free)
            slot_mapping = torch.tensor(free, dtype=self.dtype)
        arguments = {
            "parents": parents,
            "node_indptr": node_indptr,
            "context_lens": context_lens,
            "block_table": table,
            "block_size": self.block_size,
            "slot_mapping": slot_mapping,
            "max_depth": self.max_depth,
        }
        return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}


CASES = [
    Case("root_only", (1,), (0,)),
    Case("one_tree", (9,), (7,)),
    Case("chain", (40,), (3,), branching=0.0),
    Case("two_words", (33,), (5,), branching=1.0),
    Case("full_words", (64,), (16,), block_size=16),
    Case("ragged", (5, 1, 70, 12), (0, 31, 8, 3)),
    Case("inactive_rows", (0, 6, 0, 3, 0), (1, 2, 3, 4, 5)),
    Case("all_inactive", (0, 0), (1, 2)),
    Case("empty_batch", (), ()),
    Case("block_of_one", (8, 8), (5, 6), block_size=1),
    Case("large_blocks", (8, 8), (5, 127), block_size=128),
    Case("int64", (9, 4), (7, 2), dtype=torch.int64),
    Case("custom_slots", (9, 4), (7, 2), custom_slots=True),
    Case("custom_slots_int64", (9, 0, 4), (7, 1, 2), custom_slots=True, dtype=torch.int64),
    Case("capacity", (5, 7), (3, 4), capacity=20, max_depth=9),
    Case("capacity_nobody", (0, 0), (3, 4), capacity=6, max_depth=2),
    Case("wide_path", (5,), (3,), max_depth=30),
    Case("many_requests", (3,) * 200, tuple(range(200)), block_size=2),
    Case("thousand_nodes", (1000,), (100,), block_size=16, branching=1.0),
]


def plan(arguments: dict[str, Any]) -> TreePlan:
    return plan_tree(**arguments, num_qo_heads=8, num_kv_heads=2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_tree(case: Case, machine: str, device: str) -> None:
    for seed in range(3):
        arguments = case.make(device, seed)
        got = plan(arguments)
        want = reference.plan_tree(**case.make("cpu", seed))
        for field in DERIVED:
            value = getattr(got, field)
            value = value.cpu() if isinstance(value, Tensor) else value
            expected = getattr(want, field)
            if field == "ancestors" and machine != "cpu" and case.max_depth is not None:
                # Of trees whose sizes only the device knows: as wide as all rows could need.
                num_words = expected.shape[1]
                assert value.shape[1] == -(-len(value) // 32) >= num_words
                assert value[:, num_words:].count_nonzero() == 0
                value = value[:, :num_words]
            if isinstance(expected, Tensor):
                assert value.dtype == expected.dtype, field
                assert torch.equal(value, expected), field
            else:
                assert value == expected, field


def test_plan_aliases_int32_inputs(device: str) -> None:
    arguments = CASES[5].make(device)
    got = plan(arguments)
    for name in ("parents", "node_indptr", "context_lens", "block_table"):
        assert getattr(got, name) is arguments[name], name
    wide = plan(replace(CASES[5], dtype=torch.int64).make(device))
    assert wide.block_table.dtype == torch.int32


def test_strided_block_table(device: str) -> None:
    arguments = CASES[5].make(device)
    table = arguments["block_table"]
    padded = torch.full((2 * len(table), table.shape[1] + 3), UNUSED_ENTRY, dtype=table.dtype)
    view = padded.to(device)[::2, 1 : 1 + table.shape[1]]
    view.copy_(table)
    got = plan({**arguments, "block_table": view})
    assert torch.equal(got.slot_mapping, plan(arguments).slot_mapping)


@dataclass(frozen=True)
class Breach:
    name: str
    change: Callable[[dict[str, Any]], dict[str, Any]]
    message: str

    def __str__(self) -> str:
        return self.name


def _set(name: str, index: Any, value: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(arguments: dict[str, Any]) -> dict[str, Any]:
        tensor = arguments[name].clone()
        tensor[index] = value
        return {name: tensor}

    return change


def _slots(values: list[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda _: {"slot_mapping": torch.tensor(values)}


# The batch: request 0 is a chain of 3 nodes, context 5; request 1 a chain of 2, context 2;
# block_size 4; tables [[4, 9], [6]] and poison.
BREACHES = [
    Breach("first_parent", _set("parents", 3, 0), r"parents\[0\] of request 1 must be -1.*got 0"),
    Breach(
        "second_root", _set("parents", 2, -1), r"parents of request 0 must have one root.*node 2"
    ),
    Breach("parent_after", _set("parents", 1, 2), r"parents\[1\] of request 0 .*\[0, 1\), got 2"),
    Breach("own_parent", _set("parents", 4, 1), r"parents\[1\] of request 1 .*\[0, 1\), got 1"),
    Breach("parent_below", _set("parents", 2, -2), r"parents\[2\] of request 0 .*got -2"),
    Breach("indptr_start", _set("node_indptr", 0, 1), r"node_indptr\[0\] must be 0, got 1"),
    Breach(
        "indptr_decreases",
        lambda _: {"node_indptr": torch.tensor([0, 6, 5], dtype=torch.int32)},
        r"node_indptr must not decrease, got 6 then 5 at request 1",
    ),
    Breach("indptr_short", _set("node_indptr", 2, 4), r"node_indptr must end at the 5 rows.*got 4"),
    Breach("indptr_long", _set("node_indptr", 2, 6), r"node_indptr must end at the 5 rows.*got 6"),
    Breach(
        "indptr_past_capacity",
        lambda a: {**_set("node_indptr", 2, 6)(a), "max_depth": 5},
        r"node_indptr must end at no more than the 5 rows.*got 6",
    ),
    Breach(
        "indptr_empty",
        lambda _: {"node_indptr": torch.zeros(0, dtype=torch.int32)},
        r"node_indptr must have shape \[num_requests \+ 1\], got \[0\]",
    ),
    Breach("context_negative", _set("context_lens", 1, -1), r"context_lens\[1\].*got -1"),
    Breach("context_huge", _set("context_lens", 1, 2**31 - 1), r"context_lens\[1\] \+ 2 nodes"),
    Breach(
        "context_count",
        lambda a: {"context_lens": a["context_lens"][:1]},
        r"context_lens must have shape \[num_requests\] with num_requests = 2, got \[1\]",
    ),
    Breach(
        "table_rows",
        lambda a: {"block_table": a["block_table"][:1]},
        r"block_table must have shape \[num_requests, max_blocks\].*got \[1, 3\]",
    ),
    Breach(
        "table_dims",
        lambda a: {"block_table": a["block_table"][0]},
        r"block_table must have shape \[num_requests, max_blocks\], got \[3\]",
    ),
    Breach(
        "table_narrow",
        lambda a: {"block_table": a["block_table"][:, :1]},
        r"block_table of request 0 must list 2 blocks for context_len 5 and the nodes, got 1",
    ),
    Breach(
        "table_negative",
        _set("block_table", (0, 1), -1),
        r"block_table of request 0 must list 2 blocks .* got 1 before a negative entry",
    ),
    Breach(
        "context_table_negative",
        lambda a: {**_set("block_table", (0, 0), -1)(a), **_slots([70, 71, 72, 73, 74])(a)},
        r"block_table of request 0 must list 2 blocks for context_len 5, got 0 before",
    ),
    Breach(
        "requests_collide",
        lambda a: {**_set("block_table", (1, 0), 9)(a), **_set("context_lens", 1, 0)(a)},
        r"block_table must give every node its own slot, node 1 of request 0 and node 0 of "
        r"request 1 both got 37|node 1 of request 1 both got 37",
    ),
    Breach(
        "table_repeats",
        lambda a: {**_set("block_table", (0, 1), 4)(a), **_set("context_lens", 0, 5)(a)},
        r"block_table must not place a node in committed rows, node 0 of request 0 got slot 17, "
        r"its logical slot 1 < context_len 5",
    ),
    Breach(
        "slot_negative",
        _slots([50, 51, -1, 53, 54]),
        r"slot_mapping must not be negative, node 2 of request 0 got -1",
    ),
    Breach(
        "slots_collide",
        _slots([50, 51, 52, 53, 51]),
        r"slot_mapping must give every node its own slot, node 1 of request 0 and node 1 of "
        r"request 1 both got 51",
    ),
    Breach(
        "slot_committed",
        _slots([50, 51, 36, 53, 54]),
        r"slot_mapping must not place a node in committed rows, node 2 of request 0 got slot 36, "
        r"its logical slot 4 < context_len 5",
    ),
    Breach(
        "slot_count",
        _slots([50, 51, 52, 53]),
        r"slot_mapping must have shape \[num_nodes\] with num_nodes = 5, got \[4\]",
    ),
    Breach(
        "depth", lambda _: {"max_depth": 1}, r"max_depth .*got 1, node 2 of request 0 has depth 2"
    ),
    Breach(
        "depth_negative", lambda _: {"max_depth": -1}, r"max_depth must not be negative, got -1"
    ),
    Breach("block_size", lambda _: {"block_size": 0}, r"block_size must be at least 1, got 0"),
    Breach(
        "parents_dtype",
        lambda a: {"parents": a["parents"].float()},
        r"parents must be int32 or int64, got torch.float32",
    ),
    Breach(
        "slots_dtype",
        lambda _: {"slot_mapping": torch.zeros(5)},
        r"slot_mapping must be int32 or int64, got torch.float32",
    ),
    Breach(
        "int64_does_not_wrap",
        lambda a: {"parents": a["parents"].long() + torch.tensor([0, 2**32, 0, 0, 0])},
        r"parents\[1\] of request 0 .*\[0, 1\), got 2147483647",
    ),
    Breach("qo_heads", lambda _: {"num_qo_heads": 3}, r"num_qo_heads .*got 3 and 2"),
]


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_errors(breach: Breach) -> None:
    parents, node_indptr = pack_parents([[-1, 0, 1], [-1, 0]])
    arguments: dict[str, Any] = {
        "parents": parents,
        "node_indptr": node_indptr,
        "context_lens": torch.tensor([5, 2], dtype=torch.int32),
        "block_table": torch.tensor([[4, 9, -1], [6, UNUSED_ENTRY, -1]], dtype=torch.int32),
        "block_size": 4,
        "num_qo_heads": 4,
        "num_kv_heads": 2,
    }
    plan_tree(**arguments)
    with pytest.raises(ValueError, match=f"plan_tree: .*({breach.message})"):
        plan_tree(**{**arguments, **breach.change(arguments)})


STATUS_CASES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("ok", {}, [0, 0, 3]),
    ("second_root", {"parents": (2, -1)}, [4, 0, 3]),
    ("parent_after", {"parents": (1, 2)}, [4, 0, 3]),
    ("parent_huge", {"parents": (4, 2**31 - 1)}, [0, 4, 3]),
    ("first_parent", {"parents": (3, 0)}, [0, 4, 3]),
    ("indptr_start", {"node_indptr": (0, 1)}, [4, 4, 4]),
    ("indptr_decreases", {"node_indptr": (1, 9)}, [4, 4, 4]),
    ("indptr_long", {"node_indptr": (2, 100)}, [0, 4, 4]),
    ("context_negative", {"context_lens": (0, -1)}, [4, 0, 3]),
    ("context_huge", {"context_lens": (1, 2**31 - 1)}, [0, 4, 3]),
    ("table_short", {"context_lens": (1, 11)}, [0, 4, 3]),
    ("table_negative", {"block_table": ((0, 1), -1)}, [4, 0, 3]),
    ("too_deep", {"max_depth": 1}, [4, 0, 3]),
    ("slot_negative", {"slot_mapping": [50, 51, -1, 53, 54]}, [4, 0, 3]),
]


@pytest.mark.parametrize(
    ("name", "change", "status"), STATUS_CASES, ids=[c[0] for c in STATUS_CASES]
)
def test_what_only_the_device_sees(
    name: str, change: dict[str, Any], status: list[int], machine: str, device: str
) -> None:
    """With max_depth nothing is read back: a bad request gets status 4 and cleared rows."""
    if machine == "cpu":
        pytest.skip("the CPU raises")
    parents, node_indptr = pack_parents([[-1, 0, 1], [-1, 0], []], capacity=8)
    good: dict[str, Any] = {
        "parents": parents,
        "node_indptr": node_indptr,
        "context_lens": torch.tensor([5, 2, 0], dtype=torch.int32),
        "block_table": torch.tensor([[4, 9, -1], [6, UNUSED_ENTRY, -1], [-1] * 3]).int(),
        "block_size": 4,
        "max_depth": 5,
    }
    bad = dict(good)
    for key, value in change.items():
        if isinstance(value, tuple):
            bad[key] = bad[key].clone()
            bad[key][value[0]] = value[1]
        else:
            bad[key] = torch.tensor(value + [-1] * 3) if isinstance(value, list) else value
    on_device = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in bad.items()}
    got, want = plan(on_device), reference.plan_tree(**good)
    assert got.status.tolist() == status
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])  # owner; 2: nobody
    for row, owner in enumerate(rows.tolist()):
        alive = status[owner] == 0
        assert got.slot_mapping[row] >= 0 if alive else got.slot_mapping[row] == -1
        for field in ("depths", "positions", "order", "ancestors"):
            value = getattr(got, field)[row].cpu()
            expected = getattr(want, field)[row]
            assert torch.equal(value, expected if alive else torch.zeros_like(value)), field


@pytest.mark.parametrize("branching", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("num_nodes", [2047, 2048, 2049, 4100])
def test_large_trees(num_nodes: int, branching: float, machine: str, device: str) -> None:
    """Around the size up to which CUDA orders a tree in parallel."""
    if branching == 0.0 and num_nodes > 2049:
        pytest.skip("the oracle takes long for a deep one")
    case = Case("", (num_nodes, 3), (10, 5), block_size=16, branching=branching)
    got, want = plan(case.make(device)), reference.plan_tree(**case.make())
    for field in DERIVED[:-1]:
        assert torch.equal(getattr(got, field).cpu(), getattr(want, field)), field
