# SPDX-License-Identifier: Apache-2.0
"""A25: the tensors of a call lie on one device; the error names the one that does not.

Each tensor of each op in turn is put elsewhere: from the GPU to the CPU, or, for the emulator,
from the CPU to torch's meta device, on which treeattn_checks has the same checks and no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support import simt
from torch import Tensor
from treeattn.ops import RULES

B, N, W, HEADS, DIM, BLOCK = 2, 5, 1, 2, 8, 4


def i32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def i64(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def pool(dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return torch.zeros(6, BLOCK, HEADS, DIM).to(dtype)


def f32(*shape: int) -> Tensor:
    return torch.zeros(shape)


CALLS: dict[str, dict[str, object]] = {
    "plan_tree": {
        "parents": i32(N),
        "node_indptr": i32(B + 1),
        "context_lens": i32(B),
        "block_table": i32(B, 3),
        "slot_mapping": i64(N),
        "block_size": BLOCK,
        "max_depth": 3,
        "depths": i32(N),
        "positions": i32(N),
        "slots": i64(N),
        "ancestors": i32(N, W),
        "order": i32(N),
        "status": i32(B),
        "work": i32(64),
    },
    "write_kv": {
        "k": f32(N, HEADS, DIM),
        "v": f32(N, HEADS, DIM),
        "k_cache": pool(),
        "v_cache": pool(),
        "slot_mapping": i64(N),
        "k_scale": f32(HEADS),
        "v_scale": f32(1),
    },
    "tree_attention": {
        "q": f32(N, HEADS, DIM),
        "k_cache": pool(),
        "v_cache": pool(),
        "node_indptr": i32(B + 1),
        "context_lens": i32(B),
        "block_table": i32(B, 3),
        "depths": i32(N),
        "slot_mapping": i64(N),
        "ancestors": i32(N, W),
        "order": i32(N),
        "status": i32(B),
        "block_size": BLOCK,
        "sm_scale": 1.0,
        "window": None,
        "logits_soft_cap": 0.0,
        "sinks": f32(HEADS),
        "alibi_slopes": f32(HEADS),
        "k_scale": f32(HEADS),
        "v_scale": f32(1),
        "out": f32(N, HEADS, DIM),
        "lse": f32(N, HEADS),
        "work": i32(64),
        "workspace": f32(64),
        "num_ctas": 1,
        "batch_invariant": False,
    },
    "accept_path": {
        "logits": f32(N, 40),
        "tokens": i64(N),
        "parents": i32(N),
        "node_indptr": i32(B + 1),
        "context_lens": i32(B),
        "depths": i32(N),
        "plan_status": i32(B),
        "max_depth": 3,
        "rule": RULES["multistep"],
        "temperature": f32(B),
        "top_k": i32(B),
        "top_p": f32(B),
        "min_p": f32(B),
        "seeds": i64(B),
        "draft_probs": f32(N, 40),
        "draft_logits": None,  # in place of draft_probs
        "draft_rows": i32(N),
        "draft_ids": i64(40),
        "without_replacement": False,
        "allowed": i32(N, 2),
        "uniforms": f32(N, 2),
        "typical_epsilon": 0.3,
        "typical_delta": 0.09,
        "path": i32(B, 4),
        "num_accepted": i32(B),
        "next_tokens": i64(B),
        "status": i32(B),
        "emitted": i64(B, 4),
        "logprobs": f32(B, 4),
        "processed_logprobs": f32(B, 4),
        "counts": i64(2, 3, 2),
        "workspace": i32(30 * N + 41),
    },
    "remap_kv": {
        "k_caches": [pool()],
        "v_caches": [pool()],
        "k_scales": [f32(6, BLOCK, HEADS)],
        "v_scales": [f32(6, BLOCK, HEADS)],
        "node_indptr": i32(B + 1),
        "context_lens": i32(B),
        "block_table": i32(B, 3),
        "slot_mapping": i64(N),
        "path": i32(B, 4),
        "num_accepted": i32(B),
        "status": i32(B),
        "block_size": BLOCK,
        "moved": i32(B),
        "work": i32(64),
        "workspace": i32(256),
    },
    "merge_states": {
        "out_a": f32(N, HEADS, DIM),
        "lse_a": f32(N, HEADS),
        "out_b": f32(N, HEADS, DIM),
        "lse_b": f32(N, HEADS),
        "out": f32(N, HEADS, DIM),
        "lse": f32(N, HEADS),
    },
}


def schema(op: str) -> list[str]:
    return [argument.name for argument in getattr(torch.ops.treeattn, op).default._schema.arguments]


def tensors(op: str) -> Iterator[str]:
    yield from (n for n, x in CALLS[op].items() if isinstance(x, Tensor | list))


def put(value: object, device: str) -> object:
    if isinstance(value, list):
        return [put(x, device) for x in value]
    return value.to(device) if isinstance(value, Tensor) else value


def check(library: str, op: str, name: str, here: str, there: str) -> None:
    call: Callable[..., None] = getattr(getattr(torch.ops, library), op)
    names = schema(op)
    assert list(CALLS[op]) == names
    arguments = [put(CALLS[op][n], there if n == name else here) for n in names]
    with pytest.raises(ValueError) as error:
        call(*arguments)
    message = str(error.value)
    # Checks go from tensor to tensor; the first has the device that the others must have.
    blames = any(f"{prefix}{name}" in message for prefix in ("", "plan."))
    assert op in message and "must be on the device of" in message and blames, message


EVERY_TENSOR = [(op, name) for op in CALLS for name in tensors(op)]


@pytest.mark.parametrize(("op", "name"), EVERY_TENSOR, ids=[f"{o}-{n}" for o, n in EVERY_TENSOR])
def test_on_the_emulator(op: str, name: str) -> None:
    if simt.module() is None:
        pytest.skip(simt.MISSING)
    check("treeattn_checks", op, name, "cpu", "meta")


@pytest.mark.cuda
@pytest.mark.parametrize(("op", "name"), EVERY_TENSOR, ids=[f"{o}-{n}" for o, n in EVERY_TENSOR])
def test_on_a_gpu(op: str, name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    check("treeattn", op, name, "cuda", "cpu")
