# SPDX-License-Identifier: Apache-2.0
"""A few shapes as SVG, in colours that read on a white and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Look:
    """fill and stroke of a box, colour of the text in it, and `ink` for text beside it."""

    fill: str
    stroke: str
    text: str
    dash: bool = False

    @property
    def ink(self) -> Look:
        colour = self.stroke if self.fill != "none" else self.text
        return Look("none", colour, colour)


MUTED = Look("none", "#8c959f", "#7b848f")
CONTEXT = Look("#6e7781", "#6e7781", "#ffffff")
ROOT = Look("#0969da", "#0969da", "#ffffff")
OP = Look("#54a3f7", "#54a3f7", "#ffffff")
ACCEPTED = Look("#1f883d", "#1f883d", "#ffffff")
REJECTED = Look("none", "#8c959f", "#7b848f")
UNUSED = Look("none", "#8c959f", "#7b848f", dash=True)


class Canvas:
    """A transparent page of `width` x `height` pixels."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_FONT}" font-size="13" '
            'role="img">',
            f"<title>{escape(title)}</title>",
        ]

    def svg(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])

    def box(
        self, x: float, y: float, width: float, height: float, look: Look, radius: float
    ) -> None:
        dash = ' stroke-dasharray="3 3" opacity="0.55"' if look.dash else ""
        self._lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{radius}" fill="{look.fill}" stroke="{look.stroke}"{dash}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        look: Look = MUTED,
        size: float = 13,
        anchor: str = "middle",
    ) -> None:
        """One line, centred on `y`."""
        self._lines.append(
            f'<text x="{x:.1f}" y="{y + size * 0.35:.1f}" fill="{look.text}" '
            f'font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def arrow(self, start: tuple[float, float], end: tuple[float, float], look: Look) -> None:
        """A curve that leaves and arrives vertically."""
        (x0, y0), (x1, y1) = start, end
        middle = (y0 + y1) / 2
        muted = look.fill == "none"
        self._stroke(
            f"M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1 - 5:.1f}",
            look.stroke,
            1.0 if muted else 2.2,
        )
        self._head(x1, y1, look.stroke, down=True)

    def straight(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        (x0, y0), (x1, y1) = start, end
        down = x0 == x1
        dx, dy = (0, 5) if down else (5, 0)
        self._stroke(f"M{x0:.1f} {y0:.1f}L{x1 - dx:.1f} {y1 - dy:.1f}", MUTED.stroke, 1.6)
        self._head(x1, y1, MUTED.stroke, down=down)

    def bent(self, points: Sequence[tuple[float | None, float]]) -> None:
        """Axis-parallel pieces that end in a head pointing down; None keeps the x before it."""
        pieces, x = [], 0.0
        for given, y in points:
            x = x if given is None else given
            pieces.append((x, y))
        (x, y) = pieces[-1]
        pieces[-1] = (x, y - 5)
        self._stroke("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in pieces), MUTED.stroke, 1.6)
        self._head(x, y, MUTED.stroke, down=True)

    def brace(self, left: float, right: float, y: float, label: str, up: bool = False) -> None:
        """A bracket over (up) or under a range, with its label on the far side."""
        tick = 6 if up else -6
        self._stroke(f"M{left:.1f} {y + tick}V{y}H{right:.1f}V{y + tick}", MUTED.stroke, 1.2)
        self.text((left + right) / 2, y - 12 if up else y + 14, label, size=12)

    def legend(self, x: float, y: float, look: Look, label: str) -> float:
        """A sample of `look` with its meaning; returns where the next one begins."""
        self.box(x, y - 6, 12, 12, look, radius=3)
        self.text(x + 19, y, label, size=11, anchor="start")
        return x + 19 + len(label) * 6.8 + 20

    def _stroke(self, path: str, colour: str, width: float) -> None:
        self._lines.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )

    def _head(self, x: float, y: float, colour: str, *, down: bool) -> None:
        corners = (
            f"{x - 4:.1f},{y - 7:.1f} {x + 4:.1f},{y - 7:.1f}"
            if down
            else f"{x - 7:.1f},{y - 4:.1f} {x - 7:.1f},{y + 4:.1f}"
        )
        self._lines.append(f'<polygon points="{corners} {x:.1f},{y:.1f}" fill="{colour}"/>')
