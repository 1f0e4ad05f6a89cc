# SPDX-License-Identifier: Apache-2.0
"""What a drafter proposed along a continuation, and which of it came true."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treeattn.cost import path_probs
from treeattn.schedule.learned import LearnedAcceptance
from treeattn.tree import DraftTree

VERSION = 1


@dataclass(frozen=True)
class Recording:
    """What a drafter proposed at every position of one continuation.

    context: tokens before the first root. tokens: [T], the continuation. drafts: [T], the draft at
    the root before tokens[t], as large as any that may be replayed; None: it had none.
    """

    name: str
    context: int
    tokens: tuple[int, ...]
    drafts: tuple[DraftTree | None, ...]

    def __post_init__(self) -> None:
        if len(self.drafts) != len(self.tokens):
            raise ValueError(
                f"drafts must have an entry per token, {len(self.tokens)}, got {len(self.drafts)}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "context": self.context,
            "tokens": list(self.tokens),
            "drafts": [None if tree is None else _tree_to_json(tree) for tree in self.drafts],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        drafts = (None if tree is None else _tree_from_json(tree) for tree in data["drafts"])
        return cls(data["name"], data["context"], tuple(data["tokens"]), tuple(drafts))


def taught(recordings: Sequence[Recording]) -> dict[str, Any]:
    """What the drafts of all positions teach, nothing forgotten: `Policy.learned`."""
    learned = LearnedAcceptance(half_life=math.inf)
    for recording in recordings:
        for at, draft in enumerate(recording.drafts):
            if draft is not None:
                levels = int(draft.depths.max(initial=0))
                learned.observe(draft, recording.tokens[at : at + 1 + levels])
    names = ("said", "seen", "tries")
    return {name: np.round(getattr(learned, name), 2).tolist() for name in names}


def save_recordings(path: Path, recordings: Sequence[Recording], about: Mapping[str, Any]) -> None:
    """One JSON object per line, the first says what the file is."""
    header = {"treeattn_recording": VERSION, "about": dict(about)}
    lines = [header, *(recording.to_json() for recording in recordings)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def load_recordings(path: Path) -> list[Recording]:
    """Raises ValueError naming the file and what is wrong with it."""
    return load_with_about(path)[0]


def load_with_about(path: Path) -> tuple[list[Recording], dict[str, Any]]:
    """The recordings, and what the file says about them; errors as for `load_recordings`."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        header = lines[0] if lines else None
        if not isinstance(header, dict) or header.get("treeattn_recording") != VERSION:
            raise ValueError(f"treeattn_recording must be {VERSION} in the first line: {header}")
        recordings = [Recording.from_json(line) for line in lines[1:]]
        return recordings, dict(header.get("about", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"recording {path}: {error}") from error


def imagined(
    acceptance: Sequence[Sequence[float]],
    parents: Sequence[int],
    *,
    num_tokens: int,
    context: int,
    seed: int,
) -> Recording:
    """A continuation on which drafts of one shape are accepted by chance.

    acceptance: as in `cost.path_probs`: acceptance[d][r], the chance that of an accepted node of
    depth d the child of rank r is the accepted one; those of a row sum to at most 1. The drafter is
    taken to know these chances: they are the scores.
    Raises ValueError for a row that sums to more than 1.
    """
    for depth, row in enumerate(acceptance):
        if sum(row) > 1 + 1e-9:
            raise ValueError(f"acceptance[{depth}] must sum to at most 1, got {sum(row)}")
    generator = random.Random(seed)
    probs = path_probs(parents, acceptance)
    with np.errstate(divide="ignore"):
        scores = np.log(probs)
    drafts = []
    for t in range(num_tokens):
        tokens, depths = [-1] * len(parents), [0] * len(parents)
        left = {0: generator.random()}  # of each accepted node: which child it will be
        for node, parent in enumerate(parents[1:], start=1):
            depths[node] = depths[parent] + 1
            if parent not in left:
                continue
            chance = probs[node] / probs[parent]
            if 0 <= left[parent] < chance:
                tokens[node] = t + depths[node] - 1
                left[node] = generator.random()
            left[parent] -= chance
        drafts.append(DraftTree(tokens, parents, scores))
    return Recording("imagined", context, tuple(range(num_tokens)), tuple(drafts))


def _tree_to_json(tree: DraftTree) -> dict[str, Any]:
    data: dict[str, Any] = {"tokens": tree.tokens.tolist(), "parents": tree.parents.tolist()}
    if tree.scores is not None:
        data["scores"] = [round(score, 5) for score in tree.scores.tolist()]
    return data


def _tree_from_json(data: Mapping[str, Any]) -> DraftTree:
    return DraftTree(data["tokens"], data["parents"], data.get("scores"))
