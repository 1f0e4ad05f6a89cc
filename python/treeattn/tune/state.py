# SPDX-License-Identifier: Apache-2.0
"""What a tuning run has measured so far, on disk: killed and started again, it goes on there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VERSION = 3


class Measured:
    """Results by key, one JSON line each, written as soon as they are known.

    about: what the run is; the file starts with it. Raises ValueError when the file there belongs
    to another run, saying in what they differ, or to none.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, Any] = {}
        header = json.dumps({"treeattn_tune": VERSION, "about": dict(about)}, sort_keys=True)
        lines = _lines(path)
        if lines:
            _check_header(path, lines[0], header)
        for line in lines[1:]:
            try:
                key, result = json.loads(line)
            except ValueError:
                break  # the line that was being written when the run was killed
            self._results[key] = result
        whole = [header, *lines[1 : 1 + len(self._results)]]
        new = path.with_name(path.name + ".new")
        new.write_text("".join(line + "\n" for line in whole), encoding="utf-8")
        os.replace(new, path)

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


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise ValueError(_stranger(path)) from None


def _check_header(path: Path, there: str, now: str) -> None:
    if there == now:
        return
    try:
        old, new = (
            {"version": data["treeattn_tune"], **data["about"]}
            for data in map(json.loads, (there, now))
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError(_stranger(path)) from None
    differ = [
        f"{name} was {old.get(name)!r}, now it is {new.get(name)!r}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    raise ValueError(
        f"{path} is of another run; remove it, or name another --out: {'; '.join(differ)}"
    )


def _stranger(path: Path) -> str:
    return f"{path} does not hold what a tuning run measured; remove it, or name another --out"
