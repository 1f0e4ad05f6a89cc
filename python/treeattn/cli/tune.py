# SPDX-License-Identifier: Apache-2.0
"""`treeattn tune`: measure what drafting pays here, and write a policy."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treeattn import _library
from treeattn.cli.model import load_decoder, make_drafter, model_path
from treeattn.cli.progress import progress

if TYPE_CHECKING:
    from treeattn.decoder import Decoder, Drafter
    from treeattn.tune.run import Prompt

TUNED_DRAFTERS = ("suffix", "lookup", "eagle")


def run(args: argparse.Namespace) -> int:
    """Measure, or go on measuring; then write the policy, and the report if one is wanted."""
    from treeattn.tune.report import summary, write_report
    from treeattn.tune.run import Task, Tuner
    from treeattn.tune.state import Measured

    batch_sizes = _batch_sizes(args.batch_sizes)
    if args.drafter in ("none", "layer_skip"):
        raise ValueError(
            f"--drafter must be one of {', '.join(TUNED_DRAFTERS)} or a path, got {args.drafter}"
        )
    source = args.prompts or files("treeattn.tune") / "prompts.json"
    entries = json.loads(source.read_text("utf-8"))
    decoder = load_decoder(args)
    task = Task(
        drafter=args.drafter,
        batch_sizes=batch_sizes,
        max_new_tokens=args.max_new_tokens,
        max_step_ms=args.max_step_ms,
        seed=args.seed,
        about=_about(args, entries),
    )
    out: Path = args.out
    tuner = Tuner(
        decoder,
        _drafter(args, decoder),
        _prompts(decoder, entries),
        task,
        Measured(out.with_name(out.name + ".measured"), {**task.about, **_asked(task)}),
    )
    with progress(tuner.most_parts, log=True) as advance:
        tuned = Tuner(**{**vars(tuner), "advance": advance}).run()
    tuned.policy.save(out)
    if args.report is not None:
        write_report(args.report, tuned, tuner.prompts)
    print(summary(tuned))
    print(f"policy: {out}; use it: treeattn generate --policy {out} ...")
    return 0


def _asked(task: Any) -> dict[str, Any]:
    names = ("drafter", "batch_sizes", "max_new_tokens", "max_step_ms", "seed")
    return {name: getattr(task, name) for name in names}


def _about(args: argparse.Namespace, entries: list[dict[str, Any]]) -> dict[str, Any]:
    model = model_path(args.model)
    return {
        "treeattn": _library.package_version(),
        "torch": torch.__version__,
        "model": model.name,
        "dtype": args.dtype,
        "draft_head": None if args.draft_head is None else args.draft_head.name,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "prompts": hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16],
    }


def _prompts(decoder: Decoder, entries: list[dict[str, Any]]) -> tuple[Prompt, ...]:
    from treeattn.tune.run import Prompt

    if not entries:
        raise ValueError("--prompts must hold at least one prompt")
    found = []
    for entry in entries:
        ids = entry.get("prompt_ids")
        if ids is None:
            if decoder.tokenizer is None:
                raise ValueError("--prompts are text, but the checkpoint has no tokenizer")
            ids = decoder.tokenizer.encode_prompt(entry["prompt"])
        found.append(Prompt(entry["name"], entry.get("kind", "mixed"), tuple(ids)))
    return tuple(found)


def _drafter(args: argparse.Namespace, decoder: Decoder) -> Drafter:
    """An object: recordings look over its shoulder."""
    from treeattn.decoder.drafters import PromptLookup, SuffixDraft

    if args.drafter == "suffix":
        return SuffixDraft()
    if args.drafter == "lookup":
        return PromptLookup()
    made: Drafter = make_drafter(args, decoder)
    return made


def _batch_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise ValueError(f"--batch-sizes must be numbers >= 1 with commas between, got {text!r}")
    return sizes
