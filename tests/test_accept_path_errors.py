# SPDX-License-Identifier: Apache-2.0
"""Every error of accept_path names the argument, the rule and the value."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.acceptance import plan_of
from treeattn.ops import accept_path

PLAN = plan_of([[-1, 0, 0], [-1, 0]])
VALID: dict[str, Any] = {
    "logits": torch.zeros(5, 40),
    "tokens": torch.zeros(5, dtype=torch.int32),
    "plan": PLAN,
    "rule": "target",
    "seeds": torch.tensor([1, 2]),
    "allowed": torch.full((5, 2), -1, dtype=torch.int32),
    "uniforms": torch.full((5, 2), 0.5),
}


@dataclass(frozen=True)
class Breach:
    name: str
    change: dict[str, Any]
    message: str

    def __str__(self) -> str:
        return self.name


BREACHES = [
    Breach("rule", {"rule": "argmax"}, r"rule must be one of greedy, target.*, got 'argmax'"),
    Breach("draws", {"draws": "iid?"}, r"draws must be one of .*, got 'iid\?'"),
    Breach(
        "no_seeds",
        {"seeds": None, "uniforms": None},
        r"rule target must have seeds or uniforms where temperature > 0, request 0 has",
    ),
    Breach(
        "no_seeds_for_one_row",
        {"seeds": None, "uniforms": None, "temperature": torch.tensor([0.0, 0.5])},
        r"rule target must have seeds or uniforms .*request 1 has temperature 0.5",
    ),
    Breach("cold", {"temperature": -1.0}, r"temperature\[0\] must be at least 0, got -1"),
    Breach(
        "nan_temperature",
        {"temperature": torch.tensor([1.0, torch.nan])},
        r"temperature\[1\] must be at least 0, got -?nan",
    ),
    Breach("top_p_zero", {"top_p": 0.0}, r"top_p\[0\] must be greater than 0, got 0"),
    Breach("top_p_negative", {"top_p": -0.5}, r"top_p\[0\] must be greater than 0, got -0.5"),
    Breach(
        "top_p_nan",
        {"top_p": torch.tensor([0.5, torch.nan])},
        r"top_p\[1\] must be greater than 0, got -?nan",
    ),
    Breach("min_p_large", {"min_p": 1.5}, r"min_p\[0\] must be at most 1, got 1.5"),
    Breach("min_p_nan", {"min_p": float("nan")}, r"min_p\[0\] must be at most 1, got -?nan"),
    Breach("seed_range", {"seeds": 2**63}, r"seeds must fit in int64, got 9223372036854775808"),
    Breach("seeds_dtype", {"seeds": torch.tensor([1, 2]).int()}, r"seeds must be int64, got int32"),
    Breach("top_k_dtype", {"top_k": torch.tensor([1, 2])}, r"top_k must be int32, got int64"),
    Breach(
        "temperature_dtype",
        {"temperature": torch.ones(2).double()},
        r"temperature must be float32, got float64",
    ),
    Breach(
        "temperature_rows",
        {"temperature": torch.ones(3)},
        r"temperature must have shape \[num_requests\] with num_requests = 2, got \[3\]",
    ),
    Breach(
        "logits_rows",
        {"logits": torch.zeros(4, 40)},
        r"logits must have shape \[num_nodes, vocab_size\] with num_nodes = 5, got \[4, 40\]",
    ),
    Breach(
        "logits_dims",
        {"logits": torch.zeros(5)},
        r"logits must have shape \[num_nodes, vocab_size\], got \[5\]",
    ),
    Breach(
        "logits_dtype",
        {"logits": torch.zeros(5, 40).double()},
        r"logits must be float32 or bfloat16 or float16, got float64",
    ),
    Breach(
        "logits_transposed",
        {"logits": torch.zeros(40, 5).t()},
        r"logits must be contiguous from dimension 1: stride 1 must be 1, got 5",
    ),
    Breach(
        "tokens_dtype", {"tokens": torch.zeros(5)}, r"tokens must be int32 or int64, got float32"
    ),
    Breach(
        "tokens_count",
        {"tokens": torch.zeros(6).int()},
        r"tokens must have shape \[num_nodes\] with num_nodes = 5, got \[6\]",
    ),
    Breach(
        "allowed_words",
        {"allowed": torch.zeros(5, 1).int()},
        r"allowed must have shape \[num_nodes, ceil\(vocab_size / 32\)\] with .* = 2, got \[5, 1\]",
    ),
    Breach("allowed_dtype", {"allowed": torch.zeros(5, 2)}, r"allowed must be int32, got float32"),
    Breach(
        "uniforms_columns",
        {"uniforms": torch.zeros(5, 3)},
        r"uniforms must have shape \[num_nodes, 2\] .*got \[5, 3\]",
    ),
    Breach(
        "indptr",
        {"plan": replace(PLAN, node_indptr=torch.tensor([0, 3, 6], dtype=torch.int32))},
        r"node_indptr\[2\] must be in \[3, 5\], got 6",
    ),
]


@pytest.mark.parametrize("breach", BREACHES, ids=str)
def test_errors(breach: Breach) -> None:
    accept_path(**VALID)
    with pytest.raises(ValueError, match=f"accept_path: {breach.message}"):
        accept_path(**{**VALID, **breach.change})


def test_nothing_is_written_before_an_error() -> None:
    outputs = [
        torch.full((2, 2), 77, dtype=torch.int32),
        torch.full((2,), 77, dtype=torch.int32),
        torch.full((2,), 77),
        torch.full((2,), 77, dtype=torch.int32),
        torch.full((2, 2), 77),
    ]
    arguments = (
        VALID["logits"], VALID["tokens"], PLAN.parents, PLAN.node_indptr, PLAN.context_lens,
        PLAN.depths, PLAN.status, PLAN.max_depth, 1,
        torch.tensor([1.0, -1.0]), None, None, None, VALID["seeds"],
        *[None] * 4, False, None, None, 0.3, 0.09,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"temperature\[1\]"):
        torch.ops.treeattn.accept_path(*arguments, *outputs, *[None] * 4)
    assert all(bool((output == 77).all()) for output in outputs)


def test_rule_greedy_ignores_sampling_parameters() -> None:
    got = accept_path(VALID["logits"], VALID["tokens"], PLAN, temperature=-1.0, top_p=0.0)
    assert got.status.tolist() == [0, 0]


OUT_OF_MEMORY = """
import resource
import torch
from support.acceptance import plan_of
from treeattn.ops import accept_path

torch.set_num_threads(2)

def accept(logits, trees):
    tokens = torch.zeros(len(logits), dtype=torch.int32)
    accept_path(logits, tokens, plan_of(trees), rule="target", seeds=1, top_p=0.5)

for trees in ([[-1], [-1]], [[-1, 0]]):  # a request per thread; rows of one request per thread
    accept(torch.zeros(2, 100_000), trees)  # starts the threads
big = torch.zeros(2, 1 << 24, dtype=torch.bfloat16)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
for trees in ([[-1], [-1]], [[-1, 0]]):
    try:
        accept(big, trees)
    except MemoryError:
        print("MemoryError")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_a_worker_without_memory_raises() -> None:
    """Its scratch is 64 MiB here, four times what is left."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer's operator new ends the process where others throw")
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["MemoryError", "MemoryError"]
