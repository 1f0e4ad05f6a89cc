# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/concepts.md from what the ops return.

    python docs/pictures/make.py             writes every SVG beside this file

The draft trees are what `treeattn show` draws from the JSON files beside this one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import treeattn
from canvas import ACCEPTED, CONTEXT, MUTED, OP, REJECTED, ROOT, UNUSED, Canvas, Look
from treeattn import draw

HERE = Path(__file__).resolve().parent
CONTEXT_WORDS = ("In", "a", "house", "there", "lived")
TREES = ("small_tree", "demo_tree")


@dataclass(frozen=True)
class Example:
    """One step of the small tree: what lay where before and after `remap_kv`."""

    words: list[str]  # of each node
    plan: treeattn.TreePlan
    path: list[int]
    table_before: list[int]
    rows_before: dict[int, int]  # logical slot -> what lies there: a node id, or -1 - context slot
    rows_after: dict[int, int]
    moved: int

    def word(self, row: int) -> str:
        return self.words[row] if row >= 0 else CONTEXT_WORDS[-1 - row]

    def look(self, row: int) -> Look:
        if row < 0:
            return CONTEXT
        if row == 0:
            return ROOT
        return ACCEPTED if row in self.path else REJECTED


@cache
def example(block_size: int, table: tuple[int, ...]) -> Example:
    """Run plan_tree, accept_path and remap_kv; each KV row holds the name of what it stands for."""
    tree = json.loads((HERE / "small_tree.json").read_text("utf-8"))
    parents = torch.tensor(tree["parents"])
    num_nodes, context_len = len(parents), len(CONTEXT_WORDS)
    plan = treeattn.plan_tree(
        parents,
        torch.tensor([0, num_nodes]),
        torch.tensor([context_len]),
        torch.tensor([table], dtype=torch.int32),
        block_size=block_size,
        num_qo_heads=1,
        num_kv_heads=1,
    )
    pool = torch.full((max(table) + 1, block_size, 1, 8), torch.nan)

    def logical(row: int) -> torch.Tensor:
        block = int(plan.block_table[0, row // block_size])
        return pool[block, row % block_size, 0]

    def contents() -> dict[int, int]:
        slots = range(len(table) * block_size)
        return {s: int(logical(s)[0]) for s in slots if not logical(s).isnan().any()}

    for slot in range(context_len):
        logical(slot).fill_(-1 - slot)
    names = torch.arange(float(num_nodes))[:, None, None].repeat(1, 1, 8)
    treeattn.write_kv(names, names, pool, pool.clone(), plan.slot_mapping)
    before, table_before = contents(), plan.block_table[0].tolist()

    logits = torch.zeros(num_nodes, num_nodes + 1)  # node i is token i, so the path leads itself
    path = tree["accepted"]
    for node, following in zip(path, [*path[1:], num_nodes], strict=True):
        logits[node, following] = 1.0
    accepted = treeattn.accept_path(logits, torch.arange(num_nodes), plan)
    moved = treeattn.remap_kv([pool], [pool.clone()], plan, accepted)
    found = [node for node in accepted.path[0].tolist() if node >= 0]
    words = [label.strip() for label in tree["labels"]]
    return Example(words, plan, found, table_before, before, contents(), int(moved))


def plan_picture() -> str:
    """Every node's place, and the mask of a step: context, then the ancestor bits."""
    step = example(4, (7, 2, 5, 0))
    plan = step.plan
    num_nodes, num_context = len(step.words), len(CONTEXT_WORDS)
    columns = {  # heading -> (right edge or centre, values)
        "node": (36, list(range(num_nodes))),
        "parent": (150, plan.parents.tolist()),
        "depth": (206, plan.depths.tolist()),
        "position": (270, plan.positions.tolist()),
        "slot": (324, [num_context + i for i in range(num_nodes)]),
        "slot_mapping": (396, plan.slot_mapping.tolist()),
    }
    cell, top, left = 24, 56, 462
    nodes_left = left + num_context * cell + 14
    words_left = nodes_left + num_nodes * cell
    canvas = Canvas(words_left + 112, top + num_nodes * cell + 46, "The plan of one small tree")
    for heading, (x, values) in columns.items():
        canvas.text(x, top - 12, heading, look=MUTED, size=11)
        for row, value in enumerate(values):
            canvas.text(x, top + (row + 0.5) * cell, str(value))
    canvas.text(93, top - 12, "token", look=MUTED, size=11)
    canvas.text(words_left + 56, top - 12, "ancestors", look=MUTED, size=11)
    canvas.text(left + num_context * cell / 2, top - 32, "context", look=MUTED, size=11)
    canvas.text(nodes_left + num_nodes * cell / 2, top - 32, "nodes", look=MUTED, size=11)
    for slot in range(num_context):
        canvas.text(left + (slot + 0.5) * cell, top - 12, str(slot), look=MUTED, size=11)
    for node in range(num_nodes):
        canvas.text(nodes_left + (node + 0.5) * cell, top - 12, str(node), look=MUTED, size=11)
    for node, word in enumerate(plan.ancestors[:, 0].tolist()):
        y = top + node * cell
        canvas.text(93, y + cell / 2, step.words[node], look=step.look(node).ink)
        for slot in range(num_context):
            canvas.box(left + slot * cell + 2, y + 2, cell - 4, cell - 4, CONTEXT, radius=3)
        for other in range(num_nodes):
            seen = word >> other & 1
            look = (ROOT if other == node else OP) if seen else UNUSED
            canvas.box(nodes_left + other * cell + 2, y + 2, cell - 4, cell - 4, look, radius=3)
        canvas.text(words_left + 56, y + cell / 2, f"{word:3d} = 0x{word:02x}", size=12)
    y = top + num_nodes * cell + 26
    x = left
    for look, label in ((CONTEXT, "context"), (ROOT, "the node itself"), (OP, "an ancestor")):
        x = canvas.legend(x, y, look, label)
    return canvas.svg()


def remap_picture() -> str:
    """Block table and slots of one request, before and after `remap_kv`."""
    step = example(4, (7, 2, 5, 0))
    size, cell, gap, left, height = 4, 52, 14, 16, 30
    top, bottom = 74, 178
    num_slots = size * len(step.table_before)

    def x_of(slot: float) -> float:
        return left + slot * cell + int(slot) // size * gap

    canvas = Canvas(
        round(x_of(num_slots - 1)) + cell + left, 286, "KV rows before and after remap_kv"
    )
    new_len = len(CONTEXT_WORDS) + len(step.path)
    for y, rows, table, verb in (
        (top, step.rows_before, step.table_before, "before"),
        (bottom, step.rows_after, step.plan.block_table[0].tolist(), "after"),
    ):
        label_y = y - 12 if verb == "before" else y + height + 30
        for index, block in enumerate(table):
            middle = (x_of(index * size) + x_of(index * size + size - 1) + cell) / 2
            canvas.text(middle, label_y, f"block_table[{index}] = {block}", look=MUTED, size=11)
        for slot in range(num_slots):
            stale = verb == "after" and slot >= new_len
            row = rows.get(slot)
            look = UNUSED if row is None or stale else step.look(row)
            canvas.box(x_of(slot), y, cell - 3, height, look, radius=4)
            if row is not None and not stale:
                canvas.text(x_of(slot) + cell / 2 - 1.5, y + height / 2, step.word(row), look=look)
    for slot in range(num_slots):
        canvas.text(x_of(slot) + cell / 2 - 1.5, bottom + height + 12, str(slot), MUTED, 10)
    source = {row: slot for slot, row in step.rows_before.items()}
    for slot in range(len(CONTEXT_WORDS), new_len):
        row = step.rows_after[slot]
        start = (x_of(source[row]) + cell / 2 - 1.5, top + height + 3)
        canvas.arrow(start, (x_of(slot) + cell / 2 - 1.5, bottom - 4), step.look(row))
    canvas.brace(
        x_of(0), x_of(4) + cell - 3, top - 32, f"context_len = {len(CONTEXT_WORDS)}", up=True
    )
    canvas.brace(x_of(5), x_of(12) + cell - 3, top - 32, f"{len(step.words)} draft nodes", up=True)
    canvas.brace(
        x_of(0), x_of(new_len - 1) + cell - 3, bottom + height + 48, f"context_len = {new_len}"
    )
    right = x_of(num_slots - 1) + cell - 3
    canvas.text(right, top - 44, "before", MUTED, 12, "end")
    canvas.text(right, bottom + height + 62, f"after, moved = {step.moved}", MUTED, 12, "end")
    return canvas.svg()


def repoint_picture() -> str:
    """The same step with one token a block: table entries change places, no KV row moves."""
    step = example(1, (6, 11, 2, 9, 14, 3, 12, 8, 0, 5, 10, 1, 7))
    cell, left, height, top, bottom = 62, 132, 30, 58, 150
    first = len(CONTEXT_WORDS)
    after = step.plan.block_table[0].tolist()
    num_slots = len(after) - first

    def x_of(slot: int) -> float:
        return left + (slot - first) * cell

    canvas = Canvas(left + num_slots * cell + 13, 226, "A block table before and after remap_kv")
    for y, rows, table, verb in (
        (top, step.rows_before, step.table_before, "before"),
        (bottom, step.rows_after, after, "after"),
    ):
        canvas.text(16, y + height / 2, f"table {verb}", look=MUTED, size=12, anchor="start")
        word_y = y - 12 if verb == "before" else y + height + 13
        for slot in range(first, len(table)):
            look = step.look(rows[slot])
            canvas.box(x_of(slot), y, cell - 5, height, look, radius=4)
            canvas.text(x_of(slot) + cell / 2 - 2.5, y + height / 2, str(table[slot]), look=look)
            canvas.text(x_of(slot) + cell / 2 - 2.5, word_y, step.word(rows[slot]), look.ink, 11)
    for slot in range(first, len(after)):
        middle = x_of(slot) + cell / 2 - 2.5
        canvas.text(middle, 22, f"slot {slot}", look=MUTED, size=11)
        start = (x_of(step.table_before.index(after[slot])) + cell / 2 - 2.5, top + height + 3)
        canvas.arrow(start, (middle, bottom - 4), step.look(step.rows_after[slot]))
    canvas.text(left, 212, f"block_size = 1, moved = {step.moved}", MUTED, 12, anchor="start")
    return canvas.svg()


def step_picture() -> str:
    """One step, from draft to commit."""
    width, height, gap, left = 176, 58, 34, 16
    host = (("drafter", "proposes a tree"), ("pack", "many trees, one batch"))
    rows = (
        (*host, ("pool.reserve", "room for the nodes"), ("plan_tree", "once a step")),
        (
            ("write_kv", "nodes into their slots"),
            ("tree_attention", "every layer"),
            ("accept_path", "once a step"),
            ("remap_kv", "once, all layers"),
        ),
    )
    tops = (16, 136)
    canvas = Canvas(left * 2 + 4 * width + 3 * gap, 334, "One step, from draft to commit")

    def x_of(column: int) -> float:
        return left + column * (width + gap)

    def labelled(x: float, y: float, name: str, note: str) -> None:
        look = ACCEPTED if name in dir(treeattn) and name != "pack" else CONTEXT
        canvas.box(x, y, width, height, look, radius=8)
        canvas.text(x + width / 2, y + height / 2 - 9, name, look=look, size=14)
        canvas.text(x + width / 2, y + height / 2 + 11, note, look=look, size=11)

    for y, row in zip(tops, rows, strict=True):
        for column, (name, note) in enumerate(row):
            labelled(x_of(column), y, name, note)
            if column:
                middle = y + height / 2
                canvas.straight((x_of(column) - gap + 4, middle), (x_of(column) - 5, middle))
    first, last, below = x_of(0) + width / 2, x_of(3) + width / 2, 260
    turn = tops[0] + height + 22
    canvas.bent([(last, tops[0] + height + 4), (last, turn), (first, turn), (first, tops[1] - 16)])
    canvas.box(6, tops[1] - 12, x_of(1) + width + 4, height + 44, UNUSED, radius=12)
    forward = (x_of(0) + x_of(1) + width) / 2
    canvas.text(forward, tops[1] + height + 16, "the model's forward pass", MUTED, 12)
    labelled(x_of(3), below, "pool.commit", "root + accepted path")
    canvas.straight((last, tops[1] + height + 4), (last, below - 5))
    canvas.text(
        x_of(3) - 16, below + height / 2, "the next root is next_tokens  \u2190", MUTED, 12, "end"
    )
    x = x_of(0)
    for look, label in ((ACCEPTED, "op"), (CONTEXT, "host")):
        x = canvas.legend(x, below + height / 2, look, label)
    return canvas.svg()


PICTURES = {
    "plan": plan_picture,
    "remap": remap_picture,
    "repoint": repoint_picture,
    "step": step_picture,
}


def make(folder: Path) -> None:
    """Write every picture into `folder`."""
    for name, picture in PICTURES.items():
        (folder / f"{name}.svg").write_text(picture(), encoding="utf-8")
    for name in TREES:
        tree = json.loads((HERE / f"{name}.json").read_text("utf-8"))
        svg = draw.to_svg(draw.from_json(tree))
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    make(HERE)
