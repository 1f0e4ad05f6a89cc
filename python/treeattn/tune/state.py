# SPDX-License-Identifier: Apache-2.0
"""What a tuning run has measured so far, on disk: killed and started again, it goes on there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Measured:
    """Results by key, one JSON line each, written as soon as they are known.

    about: what the run is; the file starts with it. Raises ValueError when the file there belongs
    to another run, or is none.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, Any] = {}
        header = json.dumps({"treeattn_tune": 1, "about": dict(about)}, sort_keys=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if not lines:
            path.write_text(header + "\n", encoding="utf-8")
            return
        if lines[0] != header:
            raise ValueError(
                f"state {path} is of another run; remove it, or name another --out.\n"
                f"there: {lines[0]}\nnow:   {header}"
            )
        whole: list[str] = [header]
        for line in lines[1:]:
            try:
                key, result = json.loads(line)
            except ValueError:
                break  # the line that was being written when the run was killed
            self._results[key] = result
            whole.append(line)
        path.write_text("\n".join(whole) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str, measure: Callable[[], Any]) -> Any:
        """The result of `key`: the one on disk, or what `measure` returns, as JSON has it."""
        if key not in self._results:
            line = json.dumps([key, measure()])
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            self._results[key] = json.loads(line)[1]
        return self._results[key]
