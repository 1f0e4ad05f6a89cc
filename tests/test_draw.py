# SPDX-License-Identifier: Apache-2.0
"""Pictures of trees: the layout has no overlaps, the texts are right, bad trees are refused."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from treeattn import draw
from treeattn.draw.picture import visible, width

SVG = "{http://www.w3.org/2000/svg}"
TREE = {
    "parents": [-1, 0, 0, 1, 1],
    "labels": [" The", " cat", " dog", " sat", "\n"],
    "scores": [0, -0.6931472, -1.3862944, -0.6931472, -2.3025851],
    "accepted": [0, 1, 3],
    "bonus": " on",
    "title": "step 3",
}


def random_tree(seed: int, num_nodes: int) -> dict[str, Any]:
    rng = random.Random(seed)
    parents = [-1] + [rng.randrange(max(0, i - 9), i) for i in range(1, num_nodes)]
    accepted = [0]
    while any(parent == accepted[-1] for parent in parents):
        accepted.append(rng.choice([i for i, p in enumerate(parents) if p == accepted[-1]]))
    labels = ["w" * rng.randrange(1, 30) for _ in parents]
    return {"parents": parents, "labels": labels, "accepted": accepted[:-1] or [0], "bonus": "b"}


def pills(svg: str) -> list[tuple[float, float, float, float]]:
    """x, y, width and height of every node, legend entries left out."""
    rects = ElementTree.fromstring(svg).findall(f"{SVG}rect")
    boxes = [tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height")) for r in rects]
    return [(x, y, w, h) for x, y, w, h in boxes if h > 10]


def test_text() -> None:
    assert draw.to_text(draw.from_json(TREE)) == (
        "step 3\n"
        "● ␣The\n"
        "├─ ✓ ␣cat 0.50\n"
        "│  ├─ ✓ ␣sat ─ ★ ␣on (bonus)\n"
        "│  └─ ✗ ⏎ 0.20\n"
        "└─ ✗ ␣dog 0.25"
    )


def test_text_puts_a_chain_on_one_line_and_wraps_a_long_one() -> None:
    chain = {"parents": [-1, 0, 1, 2], "labels": ["a", "b", "c", "d"], "accepted": [0, 1]}
    short = draw.from_json({**chain, "parents": [-1, 0, 1, 2]})
    assert draw.to_text(short) == "● a ─ ✓ b ─ ✗ c ─ ✗ d"
    long = draw.from_json({"parents": list(range(-1, 31)), "labels": ["x" * 9] * 32})
    lines = draw.to_text(long).splitlines()
    assert len(lines) > 1 and max(map(width, lines)) <= 88
    assert sum(line.count("x" * 9) for line in lines) == 32
    assert all(line.startswith("   " * i + "└─ ") for i, line in enumerate(lines[1:]))


def test_svg_shows_every_node_and_the_accepted_path() -> None:
    svg = draw.to_svg(draw.from_json(TREE))
    texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    for text in ("step 3", "␣The", "␣cat", "␣dog", "␣sat", "⏎", "␣on", ".50", ".25", ".20"):
        assert texts.count(text) == 1, text
    green = re.findall(r'<rect[^>]*fill="#1f883d"', svg)
    assert len(green) == 2 + 1  # two accepted nodes and the legend
    assert len(re.findall("stroke-dasharray", svg)) == 1


@pytest.mark.parametrize("num_nodes", [1, 2, 8, 32, 64])
@pytest.mark.parametrize("seed", range(5))
def test_svg_nodes_do_not_overlap_and_lie_inside(seed: int, num_nodes: int) -> None:
    svg = draw.to_svg(draw.from_json(random_tree(seed, num_nodes)))
    boxes = pills(svg)
    assert len(boxes) == num_nodes + 1
    root = ElementTree.fromstring(svg)
    full_width, full_height = float(root.attrib["width"]), float(root.attrib["height"])
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and x + w <= full_width and y >= 0 and y + h <= full_height
        for x2, y2, w2, h2 in boxes[:i]:
            apart = x + w < x2 or x2 + w2 < x or y + h < y2 or y2 + h2 < y
            assert apart, "two nodes overlap"


def test_edges_do_not_cross_nodes() -> None:
    svg = draw.to_svg(draw.from_json(random_tree(3, 32)))
    columns = sorted({(x, x + w) for x, _, w, _ in pills(svg)})
    for match in re.finditer(r"H([\d.]+)C[\d.]+ [\d.]+ [\d.]+ [\d.]+ ([\d.]+) ", svg):
        turn, end = float(match[1]), float(match[2])
        assert not [c for c in columns if c[0] < end - 0.2 and c[1] > turn + 0.2]


def test_markup_in_tokens_is_escaped() -> None:
    svg = draw.to_svg(draw.from_json({"parents": [-1], "labels": ['<b>&"'], "title": "<i>"}))
    texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert '<b>&"' in texts and "<i>" in texts


def test_from_paths() -> None:
    picture = draw.from_paths(["the cat sat", "the cat ran", "the dog"])
    assert picture.labels == ("the", "cat", "sat", "ran", "dog")
    assert picture.parents == (-1, 0, 1, 1, 0)
    assert picture.kind(1) == "drafted"


def test_labels_default_to_tokens_then_node_ids() -> None:
    parents = [-1, 0]
    assert draw.from_json({"parents": parents, "tokens": [7, 9]}).labels == ("7", "9")
    assert draw.from_json({"parents": parents}).labels == ("0", "1")


def test_visible_tokens() -> None:
    assert visible(" a\n\t") == "␣a⏎⇥"
    assert visible("") == "∅"
    assert visible("\x00") == "�"
    assert width("日本a") == 5
    assert width(visible("x" * 100)) == 24 and visible("日" * 100).endswith("…")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parents": []}, "parents must name at least the root, got []"),
        ({"parents": [0, 0, 0, 1, 1]}, "got parents[0] = 0"),
        ({"parents": [-1, 0, 2, 1, 1]}, "got parents[2] = 2"),
        ({"parents": [-1, 0, -1, 1, 1]}, "got parents[2] = -1"),
        ({"parents": "abc"}, "parents must be a list of numbers, got 'abc'"),
        ({"labels": [" a"]}, "labels must have one entry per node, 5, got 1"),
        ({"labels": " a"}, "labels must be a list of texts, got ' a'"),
        ({"scores": [0.0]}, "scores must have one entry per node, 5, got 1"),
        ({"accepted": [0, 3]}, "accepted must be a path from the root, got (0, 3)"),
        ({"accepted": [0, 9]}, "accepted must be a path from the root"),
        ({"accepted": []}, "bonus needs accepted"),
        ({"nodes": []}, "unknown keys ['nodes']"),
    ],
)
def test_bad_tree(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        draw.from_json(TREE | change)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("paths", "words"),
    [(["a b", "c d"], "share their first word, got a and c"), (["a", " "], "at least one word")],
)
def test_bad_paths(paths: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw.from_paths(paths)
