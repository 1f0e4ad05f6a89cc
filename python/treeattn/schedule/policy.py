# SPDX-License-Identifier: Apache-2.0
"""What was learned about one model on one machine, as a file: costs, acceptance, verdicts."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from treeattn.cost_file import CostTables
from treeattn.schedule.learned import LearnedAcceptance

VERSION = 1
SHAPES = ("tree", "chain", "off")


@dataclass(frozen=True)
class Verdict:
    """What paid at one batch size.

    shape: "tree", "chain" or "off". num_nodes: most nodes of a request's draft, the root counted.
    draft_ms: milliseconds of a step that drafting took, for the whole batch. accepted: draft tokens
    accepted per request and step. speedup: tokens per second against plain decoding.
    """

    shape: str
    num_nodes: int
    draft_ms: float
    accepted: float
    speedup: float

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"shape must be one of {', '.join(SHAPES)}, got {self.shape!r}")
        if not isinstance(self.num_nodes, int) or self.num_nodes < 1:
            raise ValueError(
                f"num_nodes must be a whole number >= 1, the root counts; got {self.num_nodes!r}"
            )
        for name in ("draft_ms", "accepted", "speedup"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")

    @property
    def gain(self) -> float:
        """The part of plain decoding's time that is saved; 0 when it is no faster."""
        return max(0.0, 1.0 - 1.0 / self.speedup) if self.speedup > 0 else 0.0


@dataclass(frozen=True)
class Policy:
    """How much to draft, by measured costs; `schedule.Online` follows it and adapts.

    verdicts: by batch size; a batch of another size goes by the next larger one, or the largest.
    costs: of the steps. learned: of `LearnedAcceptance`, `said`, `seen`, `tries`. drafter: what
    it was made for. max_step_ms: no step is planned to take longer; None: no bound. about: the
    model, the machine, the prompts and the seed it was made with, for people.
    """

    verdicts: Mapping[int, Verdict]
    costs: CostTables
    drafter: str
    learned: Mapping[str, Any] = field(default_factory=dict)
    max_step_ms: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.verdicts or min(self.verdicts) < 1:
            raise ValueError(
                f"verdicts must be given for batch sizes >= 1, got {sorted(self.verdicts)}"
            )
        if not isinstance(self.drafter, str):
            raise ValueError(f"drafter must be a name, got {self.drafter!r}")
        for name in ("learned", "about"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must be an object, got {getattr(self, name)!r}")
        if self.max_step_ms is not None and not self.max_step_ms > 0:
            raise ValueError(f"max_step_ms must be > 0, got {self.max_step_ms}")
        self.fresh()  # what was learned is checked as well

    def verdict(self, batch_size: int) -> Verdict:
        """The one measured at the next batch size that is not smaller, or at the largest."""
        enough = [size for size in self.verdicts if size >= batch_size]
        return self.verdicts[min(enough, default=max(self.verdicts))]

    @property
    def max_nodes(self) -> int:
        return max(verdict.num_nodes for verdict in self.verdicts.values())

    def fresh(self) -> LearnedAcceptance:
        """What a new request starts from."""
        learned = self.learned
        return LearnedAcceptance(learned.get("said"), learned.get("seen"), learned.get("tries"))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        data = {
            "treeattn_policy": VERSION,
            "about": dict(self.about),
            "drafter": self.drafter,
            "max_step_ms": self.max_step_ms,
            "verdicts": {str(size): asdict(self.verdicts[size]) for size in sorted(self.verdicts)},
            "learned": dict(self.learned),
            "costs": self.costs.to_json(),
        }
        draft = path.with_name(path.name + ".new")
        draft.write_text(_readable(data) + "\n", encoding="utf-8")
        os.replace(draft, path)

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Raises FileNotFoundError, or ValueError naming the file and what is wrong with it."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.from_json(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"policy {path}: {error}") from error

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Policy:
        version = data.get("treeattn_policy") if isinstance(data, Mapping) else None
        if version != VERSION:
            raise ValueError(f"treeattn_policy must be version {VERSION}, got {version!r}")
        for name in ("verdicts", "costs", "drafter"):
            if name not in data:
                raise ValueError(f"a policy must have {name}, got {', '.join(data)}")
        return cls(
            verdicts=_verdicts(data["verdicts"]),
            costs=CostTables.from_json(data["costs"]),
            drafter=data["drafter"],
            learned=data.get("learned", {}),
            max_step_ms=data.get("max_step_ms"),
            about=data.get("about", {}),
        )


def _verdicts(data: Any) -> dict[int, Verdict]:
    names = [field.name for field in fields(Verdict)]
    if not isinstance(data, Mapping):
        raise ValueError(f"verdicts must be given by batch size, got {data!r:.80}")
    for size, entry in data.items():
        if not size.isdigit():
            raise ValueError(f"verdicts must be given by batch size, got {size!r}")
        if not isinstance(entry, Mapping) or sorted(entry) != sorted(names):
            raise ValueError(f"verdicts[{size}] must have {', '.join(names)}, got {[*entry]}")
    return {int(size): Verdict(**entry) for size, entry in data.items()}


def _readable(data: Mapping[str, Any]) -> str:
    """JSON with every row of numbers on one line; strings, which may look like rows, stay."""
    return re.sub(
        r'"(?:[^"\\]|\\.)*"|\[[\s\d.,eE+-]*\]',
        lambda found: found[0] if found[0][0] == '"' else f"[{' '.join(found[0][1:-1].split())}]",
        json.dumps(data, indent=2),
    )
