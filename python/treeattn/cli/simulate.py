# SPDX-License-Identifier: Apache-2.0
"""`treeattn simulate`: what drafting would pay on given costs, without a model or a clock."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeattn.cli import simulate_report as report
from treeattn.cli.progress import progress
from treeattn.cli.simulate_report import Case, Origin
from treeattn.cost_file import COLUMNS, CostTables, source
from treeattn.schedule.acceptance import Acceptance
from treeattn.schedule.policy import Policy
from treeattn.schedule.recording import Recording, load_with_about
from treeattn.schedule.simulate import Setting, compare


@dataclass(frozen=True)
class Source:
    """Drafts to decode with. alpha: what they were imagined from, if that is one number."""

    label: str
    about: str
    recordings: Sequence[Recording]
    alpha: float | None = None


def run(args: argparse.Namespace) -> int:
    """Compare the settings at every batch size; the same arguments print the same."""
    batch_sizes = integers("--batch-sizes", args.batch_sizes)
    settings = [*chains(args.chains), *trees(args.trees)]
    if not settings:
        raise ValueError("--chains and --trees must name a setting at least, got - for both")
    policy = None if args.policy is None else Policy.load(args.policy)
    tables = {size: CostTables.load(args.costs, batch_size=size) for size in batch_sizes}
    sources = _sources(args, settings)

    cases: list[Case] = []
    with progress(len(sources) * len(batch_sizes)) as advance:
        for drafts in sources:
            for size in batch_sizes:
                advance(f"{drafts.label}, batch {size}")
                result = compare(
                    drafts.recordings, tables[size], settings, batch_size=size, policy=policy
                )
                cases.append(Case(drafts.label, drafts.alpha, result))
    origins = [origin for size in batch_sizes for origin in _cost_origins(args.costs, tables[size])]
    origins += [Origin("acceptance", source(drafts.about), drafts.about) for drafts in sources]
    origins = list(dict.fromkeys(origins))  # batch sizes seldom differ in them
    notes = _notes(args, tables[batch_sizes[0]], sources, policy)

    print(report.text(cases, origins, notes))
    if args.json is not None:
        numbers = report.as_json(cases, origins, notes, args.seed)
        args.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    if args.report is not None:
        report.write(args.report, cases, origins, notes)
    return 0


def integers(name: str, text: str) -> list[int]:
    """Comma-separated integers >= 1, or - for none where a list may be empty."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError(f"{name} must be integers >= 1 separated by commas, got {text!r}")
    return [int(part) for part in parts]


def chains(text: str) -> list[Setting]:
    """Drafted tokens of each chain; the root is a node as well."""
    if text == "-":
        return []
    return [Setting("chain", length + 1, length) for length in integers("--chains", text)]


def trees(text: str) -> list[Setting]:
    """Nodes, the root counted, and levels below it."""
    settings: list[Setting] = []
    for part in text.split(",") if text != "-" else ():
        match = re.fullmatch(r"(\d+)(?:x(\d+))?", part.strip())
        nodes, depth = (match[1], match[2]) if match else ("0", None)
        if int(nodes) < 2 or (depth is not None and int(depth) < 1):
            raise ValueError(
                f"--trees must be NODES or NODESxLEVELS with at least 2 nodes and 1 level, "
                f"separated by commas, got {text!r}"
            )
        settings.append(Setting("tree", int(nodes), None if depth is None else int(depth)))
    return settings


def _sources(args: argparse.Namespace, settings: Sequence[Setting]) -> list[Source]:
    if args.siblings != 0.0 and args.alpha is None:
        raise ValueError(f"--siblings goes with --alpha, got --siblings {args.siblings:g} without")
    if args.recording is not None:
        recordings, about = load_with_about(args.recording)
        if not any(recording.tokens for recording in recordings):
            raise ValueError(f"--recording must hold a token at least, {args.recording} has none")
        return [
            Source(args.recording.name, _recorded(args.recording, recordings, about), recordings)
        ]
    for name in ("context", "requests", "tokens"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be >= 1, got {getattr(args, name)}")
    if args.seed < 0:
        raise ValueError(f"--seed must be >= 0, got {args.seed}")
    if args.acceptance is not None:
        table = Acceptance.load(args.acceptance)
        note = table.about or f"no note in {args.acceptance.name}"
        return [Source(args.acceptance.name, note, _imagine(args, settings, table))]
    return [
        Source(f"alpha {alpha:g}", table.about, _imagine(args, settings, table), alpha)
        for alpha in _alphas(args.alpha)
        for table in [Acceptance.geometric(alpha, args.siblings)]
    ]


def _alphas(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--alpha must be numbers separated by commas, got {text!r}") from None


def _imagine(
    args: argparse.Namespace, settings: Sequence[Setting], table: Acceptance
) -> list[Recording]:
    """The last token of each request sees `--context` tokens, or as many as there are."""
    return table.imagine(
        [(s.num_nodes, s.max_depth or s.num_nodes - 1) for s in settings if s.shape == "tree"],
        longest_chain=max((s.num_nodes - 1 for s in settings if s.shape == "chain"), default=0),
        num_requests=args.requests,
        num_tokens=args.tokens,
        context=max(0, args.context - args.tokens),
        seed=args.seed,
    )


def _recorded(path: Path, recordings: Sequence[Recording], about: dict[str, Any]) -> str:
    """Recorded drafts are measured ones, unless they were imagined."""
    kind = "assumed" if any(r.name == "imagined" for r in recordings) else "measured"
    notes = "".join(f", {name}: {value}" for name, value in about.items())
    return f"{kind}: {len(recordings)} recordings in {path.name}{notes}"


def _cost_origins(path: Path, tables: CostTables) -> list[Origin]:
    origins = []
    for name in COLUMNS:
        if getattr(tables, name):
            note = tables.about.get(name) or f"no note in {path.name}"
            origins.append(Origin(name, tables.source(name), note))
        else:
            origins.append(Origin(name, "absent", f"not in {path.name}: takes no time"))
    return origins


def _notes(
    args: argparse.Namespace, tables: CostTables, sources: Sequence[Source], policy: Policy | None
) -> list[str]:
    """What a reader of the numbers should know."""
    notes = [
        "The batch is always full: recordings begin again until each has been decoded once.",
        "Rows and tokens per step are of one request.",
    ]
    if policy is None:
        notes.append(
            "The policy was made from the same costs: the tree or chain that served it best on the "
            "first quarter of the recordings, and what it brought there."
        )
    else:
        notes.append(f"The policy is that of {args.policy.name}; its own costs decide.")
    longest = max(
        recording.context + len(recording.tokens)
        for drafts in sources
        for recording in drafts.recordings
    )
    if longest > tables.max_context:
        notes.append(
            f"Contexts up to {longest} cost what {tables.max_context}, the longest in "
            f"{args.costs.name}, does."
        )
    return notes
