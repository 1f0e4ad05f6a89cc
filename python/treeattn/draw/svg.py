# SPDX-License-Identifier: Apache-2.0
"""A draft tree as SVG: root at the left, one column a depth, one row a leaf.

Colours are chosen to read on a white and on a dark page; the background stays transparent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from treeattn.draw.picture import Picture, visible, width

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_CHAR = 7.9  # width of one column at 13 px
_ROW, _HEIGHT, _GAP, _MARGIN, _PADDING = 34.0, 24.0, 46.0, 16.0, 11.0
_TITLE, _LEGEND = 30.0, 34.0
_MUTED = "#7b848f"


@dataclass(frozen=True)
class _Look:
    """fill and stroke of the node, colour of its text, colour of the edge that leads to it."""

    fill: str
    stroke: str
    text: str
    edge: str
    legend: str


_LOOKS = {
    "root": _Look("#0969da", "#0969da", "#ffffff", "#0969da", "root, already emitted"),
    "accepted": _Look("#1f883d", "#1f883d", "#ffffff", "#2da44e", "accepted"),
    "bonus": _Look("#8250df", "#8250df", "#ffffff", "#8250df", "bonus, from the target"),
    "rejected": _Look("none", "#8c959f", _MUTED, "#8c959f", "rejected"),
    "drafted": _Look("none", "#0969da", "#4c8fe0", "#8c959f", "drafted"),
}


@dataclass(frozen=True)
class _Node:
    text: str
    number: str
    kind: str
    parent: int
    depth: int
    weight: float  # 0..1, how thick its edge is
    row: int = 0

    @property
    def width(self) -> float:
        columns = width(self.text) + (width(self.number) * 0.85 + 1 if self.number else 0)
        return columns * _CHAR + 2 * _PADDING


def to_svg(picture: Picture) -> str:
    """The picture as a complete SVG document."""
    nodes = _with_rows(_nodes(picture))
    columns = max(node.depth for node in nodes) + 1
    widths = [max(node.width for node in nodes if node.depth == d) for d in range(columns)]
    lefts = [_MARGIN + sum(widths[:depth]) + depth * _GAP for depth in range(columns)]
    top = _MARGIN + (_TITLE if picture.title else 0.0)
    rows = max(node.row for node in nodes) + 1
    kinds = [kind for kind in _LOOKS if any(node.kind == kind for node in nodes)]
    legend_widths = [width(_LOOKS[kind].legend) * _CHAR * 0.85 + 44 for kind in kinds]
    full_width = _MARGIN + max(
        lefts[-1] + widths[-1], sum(legend_widths), width(picture.title) * _CHAR + _MARGIN
    )
    full_height = top + rows * _ROW + _LEGEND

    def place(node: _Node) -> tuple[float, float]:
        return lefts[node.depth], top + (node.row + 0.5) * _ROW

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full_width:.0f}" '
        f'height="{full_height:.0f}" viewBox="0 0 {full_width:.0f} {full_height:.0f}" '
        f'font-family="{_FONT}" font-size="13" role="img">',
        f"<title>{escape(picture.title or 'draft tree')}</title>",
    ]
    if picture.title:
        lines.append(
            f'<text x="{_MARGIN}" y="{_MARGIN + 10}" fill="{_MUTED}" font-weight="600">'
            f"{escape(picture.title)}</text>"
        )
    muted_first = sorted(nodes[1:], key=lambda node: node.kind != "rejected")
    for node in muted_first:
        parent = nodes[node.parent]
        left, y = place(parent)
        turn = left + widths[parent.depth]  # straight up to here, past the pills of its column
        lines.append(_edge((left + parent.width, y), turn, place(node), node))
    lines.extend(_pill(node, *place(node)) for node in nodes)
    x = _MARGIN
    for kind, step in zip(kinds, legend_widths, strict=True):
        lines.append(_legend(kind, x, full_height - _LEGEND / 2))
        x += step
    return "\n".join([*lines, "</svg>", ""])


def _nodes(picture: Picture) -> list[_Node]:
    nodes: list[_Node] = []
    for i, parent in enumerate(picture.parents):
        p = picture.probability(i)
        number = "" if p is None or p >= 0.995 else f"{p:.2f}".lstrip("0")
        depth = nodes[parent].depth + 1 if i else 0
        weight = 0.5 if p is None else p
        nodes.append(_Node(picture.text(i), number, picture.kind(i), parent, depth, weight))
    if picture.bonus is not None:
        last = picture.accepted[-1]
        nodes.append(_Node(visible(picture.bonus), "", "bonus", last, nodes[last].depth + 1, 0.5))
    return nodes


def _with_rows(nodes: list[_Node]) -> list[_Node]:
    """Give every node a row: level with its first child, below all earlier nodes of its column.

    First paths are straight lines, children keep the draft's order, and edges never cross.
    """
    children: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes[1:], start=1):
        children[node.parent].append(i)
    rows = [0] * len(nodes)
    next_free = [0] * (max(node.depth for node in nodes) + 1)

    def place(first: int) -> None:
        line = [first]
        while children[line[-1]]:
            line.append(children[line[-1]][0])
        row = max(next_free[nodes[i].depth] for i in line)
        for i in line:
            rows[i] = row
            next_free[nodes[i].depth] = row + 1
        for i in reversed(line):
            for child in children[i][1:]:
                place(child)

    place(0)
    return [replace(node, row=row) for node, row in zip(nodes, rows, strict=True)]


def _edge(start: tuple[float, float], turn: float, end: tuple[float, float], node: _Node) -> str:
    (x0, y0), (x1, y1) = start, end
    middle = (turn + x1) / 2
    look = _LOOKS[node.kind]
    strong = node.kind in ("accepted", "bonus")
    stroke = 2.6 if strong else 0.8 + 1.6 * node.weight
    dash = ' stroke-dasharray="5 4"' if node.kind == "bonus" else ""
    opacity = "" if strong else ' opacity="0.7"'
    return (
        f'<path d="M{x0:.1f} {y0:.1f}H{turn:.1f}C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} '
        f'{x1:.1f} {y1:.1f}" fill="none" stroke="{look.edge}" stroke-width="{stroke:.1f}"'
        f"{dash}{opacity}/>"
    )


def _pill(node: _Node, x: float, y: float) -> str:
    look = _LOOKS[node.kind]
    number_x = x + node.width - _PADDING
    number = (
        f'<text x="{number_x:.1f}" y="{y + 4:.1f}" fill="{look.text}" font-size="11" '
        f'text-anchor="end" opacity="0.8">{node.number}</text>'
        if node.number
        else ""
    )
    return (
        f'<rect x="{x:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{node.width:.1f}" height="{_HEIGHT}" '
        f'rx="{_HEIGHT / 2}" fill="{look.fill}" stroke="{look.stroke}" stroke-width="1.2"/>'
        f'<text x="{x + _PADDING:.1f}" y="{y + 4.5:.1f}" fill="{look.text}" '
        f'xml:space="preserve">{escape(node.text)}</text>{number}'
    )


def _legend(kind: str, x: float, y: float) -> str:
    look = _LOOKS[kind]
    return (
        f'<rect x="{x:.1f}" y="{y - 5:.1f}" width="16" height="10" rx="5" fill="{look.fill}" '
        f'stroke="{look.stroke}" stroke-width="1.2"/>'
        f'<text x="{x + 23:.1f}" y="{y + 4:.1f}" fill="{_MUTED}" font-size="11">'
        f"{escape(look.legend)}</text>"
    )
