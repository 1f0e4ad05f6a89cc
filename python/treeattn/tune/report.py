# SPDX-License-Identifier: Apache-2.0
"""What a tuning run found, as Markdown, CSV and plots."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from treeattn.cli.markdown import markdown_table
from treeattn.schedule.recording import save_recordings
from treeattn.schedule.replay import PHASES
from treeattn.tune.analysis import (
    acceptance,
    overall,
    policy_by_prompt,
    predicted,
    pruning,
    regret,
)
from treeattn.tune.plots import draw
from treeattn.tune.run import Prompt, Tuned

BUDGETS = (2, 4, 8, 16, 32)
MUCH_NOISE = 0.1  # of plain decoding against itself
COLUMNS = (
    "batch",
    "setting",
    "tokens/s",
    "against plain",
    "predicted",
    "tokens/step",
    "rows/step",
    *(f"{phase} ms/step" for phase in PHASES),
    "identical",
)


def write_report(folder: Path, tuned: Tuned, prompts: Sequence[Prompt]) -> None:
    """report.md, trials.csv and, with matplotlib, PNG pictures; the folder is made.

    recordings.jsonl holds the greedy recordings, for `treeattn simulate --recording`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(trial_rows(tuned))
    with (folder / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    save_recordings(folder / "recordings.jsonl", tuned.recordings[0.0], tuned.policy.about)
    pictures = "\n".join(f"![{path.stem}]({path.name})" for path in draw(folder, tuned))
    sections = (
        "# What drafting pays",
        summary(tuned),
        str(tuned.policy.about["repeatability"]),
        "## Trials\n\nEach beside plain decoding of the same prompts, step by step in turns. "
        "`predicted` is from the cost tables and the recorded drafts.\n\n"
        + markdown_table(COLUMNS, rows),
        _by_prompt(tuned, prompts),
        _rows_and_time(tuned),
        _pruning(tuned),
        _drafting(tuned),
        _restore(tuned),
        _temperatures(tuned),
        pictures or "Pictures need matplotlib: pip install matplotlib.",
    )
    text = "\n\n".join(section for section in sections if section) + "\n"
    (folder / "report.md").write_text(text, encoding="utf-8")


def summary(tuned: Tuned) -> str:
    """The verdict of every batch size, with its numbers."""
    lines = []
    for batch_size, found in tuned.found.items():
        verdict = tuned.policy.verdict(batch_size)
        best = [
            f"best {shape} {trial.speedup:.2f}x ({trial.setting})"
            for shape in ("chain", "tree")
            if (trial := found.best(shape)) is not None
        ]
        excess, hindsight = regret(tuned, batch_size)
        parts: tuple[str, ...] = (
            f"batch {batch_size}: **{verdict.shape}**",
            ", ".join(best) or "no draft keeps the latency bound",
            f"policy {overall(tuned.last[batch_size]):.2f}x",
            f"plain differs from itself by {100 * found.noise:.1f}%",
            f"replayed, the policy takes {100 * excess:+.1f}% more time than the best fixed "
            f"setting in hindsight ({hindsight})",
        )
        if found.noise > MUCH_NOISE:
            parts += ("too busy a machine to tell: remove what was measured, and run again",)
        lines.append("; ".join(parts))
    return "\n".join(f"- {line}" for line in lines)


def trial_rows(tuned: Tuned) -> Iterator[tuple[str, ...]]:
    """One row per trial, as in COLUMNS."""
    for batch_size, found in tuned.found.items():
        every_level = tuned.every_level.get(batch_size, ())
        for trial in (*found.trials, *tuned.last[batch_size], *every_level):
            yield (
                str(batch_size),
                str(trial.setting),
                f"{trial.tokens_per_second:.1f}",
                f"{trial.speedup:.2f}",
                f"{predicted(tuned, trial):.2f}",
                f"{trial.tokens_per_step:.2f}",
                f"{(trial.drafted + trial.steps) / trial.rounds:.1f}",
                *(f"{1000 * trial.seconds[phase] / trial.rounds:.2f}" for phase in PHASES),
                "yes" if trial.identical else "NO",
            )


def _by_prompt(tuned: Tuned, prompts: Sequence[Prompt]) -> str:
    speedups = policy_by_prompt(tuned, prompts)
    if not speedups:
        return ""
    rows = [(prompt.name, prompt.kind, f"{speedups[prompt.name]:.2f}") for prompt in prompts]
    for kind in dict.fromkeys(prompt.kind for prompt in prompts):
        indices = [index for index, prompt in enumerate(prompts) if prompt.kind == kind]
        rows.append((f"all {kind}", kind, f"{overall(tuned.last[1], indices):.2f}"))
    rows.append(("all", "", f"{overall(tuned.last[1]):.2f}"))
    return "## The policy, prompt by prompt, batch 1\n\n" + markdown_table(
        ("prompt", "kind", "against plain"), rows
    )


def _rows_and_time(tuned: Tuned) -> str:
    """What pruning before verify saves: time follows the rows that are left."""
    costs = tuned.policy.costs
    rows = []
    contexts = sorted({int(point[1]) for point in costs.verify})
    for batch_size, tables in sorted((costs.batches or {1: costs}).items()):
        for num_rows in sorted({int(point[0]) for point in tables.verify}):
            times = [f"{tables.costs.verify(num_rows, context):.1f}" for context in contexts]
            rows.append((str(batch_size), str(num_rows), *times))
    return (
        "## Verify time against rows kept\n\nRows that are pruned are dropped, not masked: a step "
        "takes what the rows left take, along this measured staircase.\n\n"
        + markdown_table(
            ("batch", "rows", *(f"ms, context {context}" for context in contexts)), rows
        )
    )


def _pruning(tuned: Tuned) -> str:
    rows = []
    for batch_size in tuned.found:
        for name, done in pruning(tuned, batch_size).items():
            rows.append(
                (
                    str(batch_size),
                    name,
                    f"{done.rows / done.rounds:.1f}",
                    f"{done.tokens / done.steps:.2f}",
                    f"{done.total_ms / done.tokens:.2f}",
                )
            )
    return (
        "## What pruning saves, place by place\n\nThe recorded drafts replayed at the measured "
        "costs.\n\n"
        + markdown_table(("batch", "pruned", "rows/step", "tokens/step", "ms/token"), rows)
    )


def _drafting(tuned: Tuned) -> str:
    """What is saved where the drafter works level by level, decoded, not replayed."""
    rows = []
    for batch_size, every_level in tuned.every_level.items():
        for name, trials in (
            ("every level", every_level),
            ("levels and branches that pay", tuned.last[batch_size]),
        ):
            rounds, steps = (sum(getattr(t, what) for t in trials) for what in ("rounds", "steps"))
            rows.append(
                (
                    str(batch_size),
                    name,
                    f"{sum(trial.passes for trial in trials) / rounds:.2f}",
                    f"{1000 * sum(trial.seconds['draft'] for trial in trials) / rounds:.2f}",
                    f"{sum(trial.drafted + trial.steps for trial in trials) / rounds:.1f}",
                    f"{sum(trial.tokens for trial in trials) / steps:.2f}",
                    f"{overall(trials):.2f}",
                )
            )
    columns = ("batch", "drafted", "passes/step", "draft ms/step", "rows/step", "tokens/step")
    return "## What pruning saves while drafting\n\n" + (
        "The policy decoding, its drafts stopped or not; passes are those of the drafter's "
        "model.\n\n" + markdown_table((*columns, "against plain"), rows)
        if rows
        else "Nothing: this drafter gives a whole draft at once, or is not asked."
    )


def _restore(tuned: Tuned) -> str:
    rows = [
        (name, f"{1000 * found['ms']:.1f}", f"{found['rows_moved']:.0f}")
        for name, found in tuned.restore.items()
    ]
    return "## Time to restore the KV cache\n\n" + markdown_table(
        ("where the accepted path lies", "us, all layers", "rows moved per layer"), rows
    )


def _temperatures(tuned: Tuned) -> str:
    rows = []
    for num_nodes in BUDGETS:
        for shape in ("chain", "tree"):
            accepted = [
                f"{acceptance(recordings, shape, num_nodes):.2f}"
                for recordings in tuned.recordings.values()
            ]
            rows.append((str(num_nodes), shape, *accepted))
    return (
        "## Acceptance at equal budget\n\nDraft tokens accepted per step by a chain and a tree of "
        "as many nodes, as temperature rises (rule `target`, seeded).\n\n"
        + markdown_table(("nodes", "shape", *(f"T = {value}" for value in tuned.recordings)), rows)
    )
