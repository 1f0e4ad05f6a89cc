# SPDX-License-Identifier: Apache-2.0
"""Cost tables of a model on one H200, by arithmetic on the machine's ceilings; nothing is measured.

    python -m bench.h200_costs --model llama3-8b > bench/costs/llama3_8b_h200.json

The tables are what `treeattn simulate --costs` reads. The KV that a step reads depends on how many
requests its rows belong to, so there is a set of tables for each batch size. They are floors: real
steps take longer, the drafter's many small kernels most of all, so what is read off these tables is
how speed-ups depend on batch and acceptance, not what an engine will reach.

verify: weights read once or two operations per parameter and row, whichever takes longer; plus, per
    layer, attention: KV, Q and O once, or the visible operations, or a launch.
draft: a head like EAGLE-3's: one layer of the model and a head of 32,000 tokens, its attention over
    the last 1,024 tokens. Every level is taken to cost the same; what the first one does besides,
    running over the tokens that the step before emitted, is left out.
accept: up to eight visited rows of logits per request, read once. remap: up to eight accepted rows
    per request, read and written in all layers. Neither below one launch; plain decoding pays both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeattn.cost_file import CostTables

from bench.models import LLAMA3_8B, Model

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NODES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)  # of each request
CONTEXTS = (1024, 8192, 32768)
LEVELS = 16  # of the drafter; a staircase takes the last one's price for all
VISITED = 8  # nodes of a request that are looked at, or accepted, per step at most
ANCESTORS = 7  # tree keys that a node sees on average, itself included
DRAFT_WINDOW = 1024
DRAFT_VOCAB = 32_000
ITEM = 2  # bytes of a bf16


@dataclass(frozen=True)
class Device:
    """bytes_per_s: of a device copy, read and written. flops_per_s: dense bf16 matrix products."""

    name: str
    bytes_per_s: float
    flops_per_s: float
    launch_s: float
    memory_bytes: float

    def seconds(self, num_bytes: float, flops: float) -> float:
        """The longer of moving and computing."""
        return max(num_bytes / self.bytes_per_s, flops / self.flops_per_s)


H200 = Device("one H200", 4.3e12, 788e12, 2.5e-6, 141e9)


@dataclass(frozen=True)
class Target:
    """params: as they are counted for a step, all read and all multiplied."""

    model: Model
    params: float
    hidden: int
    intermediate: int
    vocab: int

    @property
    def layer_params(self) -> int:
        """Of one layer: q and o, k and v, and the three matrices of its MLP."""
        model = self.model
        heads = 2 * (model.num_qo_heads + model.num_kv_heads) * model.head_dim
        return self.hidden * (heads + 3 * self.intermediate)


TARGETS = {"llama3-8b": Target(LLAMA3_8B, 8e9, 4096, 14336, 128_256)}


@dataclass(frozen=True)
class Attention:
    """One layer's: what it must move and compute."""

    kv_bytes: float
    qo_bytes: float
    flops: float

    def seconds(self, device: Device) -> float:
        return max(device.seconds(self.kv_bytes + self.qo_bytes, self.flops), device.launch_s)


def attention(model: Model, *, batch_size: int, context: int, rows: int) -> Attention:
    """rows: nodes of the whole batch, spread evenly; each sees its context and its ancestors."""
    visible = rows * (context + min(ANCESTORS, rows / batch_size))
    return Attention(
        kv_bytes=2.0 * (batch_size * context + rows) * model.num_kv_heads * model.head_dim * ITEM,
        qo_bytes=2.0 * rows * model.num_qo_heads * model.head_dim * ITEM,
        flops=4.0 * model.head_dim * model.num_qo_heads * visible,
    )


def linear_s(params: float, rows: int, device: Device = H200) -> float:
    """Weights read once, two operations per parameter and row."""
    return device.seconds(ITEM * params, 2.0 * params * rows)


def verify_s(
    target: Target, *, batch_size: int, context: int, rows: int, device: Device = H200
) -> float:
    layer = attention(target.model, batch_size=batch_size, context=context, rows=rows)
    return linear_s(target.params, rows, device) + target.model.num_layers * layer.seconds(device)


def draft_s(target: Target, *, batch_size: int, width: int, device: Device = H200) -> float:
    params = target.layer_params + target.hidden * DRAFT_VOCAB
    layer = attention(target.model, batch_size=batch_size, context=DRAFT_WINDOW, rows=width)
    return linear_s(params, width, device) + layer.seconds(device)


def accept_s(target: Target, *, batch_size: int, rows: int, device: Device = H200) -> float:
    visited = min(rows, VISITED * batch_size)
    return max(device.seconds(visited * target.vocab * ITEM, 0.0), device.launch_s)


def remap_s(target: Target, *, batch_size: int, rows: int, device: Device = H200) -> float:
    moved = min(rows - batch_size, VISITED * batch_size)
    row_bytes = 2 * target.model.num_kv_heads * target.model.head_dim * ITEM
    num_bytes = 2.0 * moved * row_bytes * target.model.num_layers  # read and written
    return max(device.seconds(num_bytes, 0.0), device.launch_s)


def tables(target: Target, batch_size: int, device: Device = H200) -> CostTables:
    """Of one batch size; contexts whose KV does not fit beside the weights are left out."""
    model = target.model
    token_bytes = 2.0 * model.num_kv_heads * model.head_dim * ITEM * model.num_layers
    room = device.memory_bytes - ITEM * target.params
    sizes = [batch_size * nodes for nodes in NODES]
    return CostTables(
        verify=tuple(
            (
                rows,
                context,
                _ms(verify_s(target, batch_size=batch_size, context=context, rows=rows)),
            )
            for context in CONTEXTS
            if batch_size * context * token_bytes <= room
            for rows in sizes
        ),
        draft=tuple(
            (LEVELS, width, _ms(draft_s(target, batch_size=batch_size, width=width)))
            for width in sizes
        ),
        accept=tuple(
            (rows, _ms(accept_s(target, batch_size=batch_size, rows=rows))) for rows in sizes
        ),
        remap=tuple(
            (rows, _ms(remap_s(target, batch_size=batch_size, rows=rows))) for rows in sizes
        ),
    )


def about(target: Target, device: Device = H200) -> dict[str, str]:
    """Where each table's numbers come from."""
    ceilings = (
        f"assumed: arithmetic on ceilings of {device.name} ({device.bytes_per_s / 1e12:g} TB/s, "
        f"{device.flops_per_s / 1e12:g} TFLOP/s bf16, launches of {device.launch_s * 1e6:g} us)"
    )
    return {
        "model": f"{target.model.name}, bf16, {target.params / 1e9:g}e9 parameters",
        "verify": f"{ceilings}: linear layers and attention",
        "draft": f"{ceilings}: an EAGLE-3-like head, 1 layer and a head of {DRAFT_VOCAB} tokens, "
        f"over the last {DRAFT_WINDOW} tokens",
        "accept": f"{ceilings}: up to {VISITED} rows of logits per request",
        "remap": f"{ceilings}: up to {VISITED} rows of KV per request, all layers",
    }


def as_json(target: Target) -> dict[str, Any]:
    """What the file holds."""
    batches = {str(size): _points(tables(target, size)) for size in BATCH_SIZES}
    return {"about": about(target), "batches": batches}


def readable(data: Mapping[str, Any]) -> str:
    """JSON with a line per table."""
    batches = ",\n".join(
        f'  "{size}": {{\n'
        + ",\n".join(f'   "{name}": {json.dumps(points)}' for name, points in entry.items())
        + "\n  }"
        for size, entry in data["batches"].items()
    )
    return (
        f'{{\n "about": {json.dumps(data["about"], indent=2)},\n "batches": {{\n{batches}\n }}\n}}'
    )


def _points(entry: CostTables) -> dict[str, list[list[float]]]:
    return {
        name: [list(point) for point in getattr(entry, name)]
        for name in ("verify", "draft", "accept", "remap")
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 5)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.h200_costs", description=__doc__)
    parser.add_argument("--model", choices=sorted(TARGETS), default="llama3-8b")
    print(readable(as_json(TARGETS[parser.parse_args(argv).model])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
