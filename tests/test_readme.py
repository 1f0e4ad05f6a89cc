# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the documentation runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ["README.md", "docs/concepts.md"]


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str) -> None:
    """The blocks of a page build on each other, top to bottom."""
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text("utf-8"))
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
