# SPDX-License-Identifier: Apache-2.0
"""`treeattn tune`: measure what drafting pays here, and write a policy."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treeattn import _library
from treeattn.cli.model import load_decoder, make_drafter, model_path
from treeattn.cli.progress import progress

if TYPE_CHECKING:
    from treeattn.decoder import Decoder, Drafter
    from treeattn.tune.run import Prompt, Task

KINDS = ("copy", "mixed", "free")
TUNED_DRAFTERS = ("suffix", "lookup", "eagle")


def run(args: argparse.Namespace) -> int:
    """Measure, or go on measuring; then write the policy, and the report if one is wanted."""
    from treeattn.tune.report import summary, write_report
    from treeattn.tune.run import Task, Tuner
    from treeattn.tune.state import Measured

    if args.drafter in ("none", "layer_skip"):
        raise ValueError(
            f"--drafter must be one of {', '.join(TUNED_DRAFTERS)} or a path, got {args.drafter}"
        )
    out: Path = args.out
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out} must lie in a folder that exists")
    if args.report is not None and args.report.exists() and not args.report.is_dir():
        raise ValueError(f"--report {args.report} must be a folder, it is a file")
    entries = _entries(args.prompts)
    task = Task(
        drafter=args.drafter,
        batch_sizes=_batch_sizes(args.batch_sizes),
        max_new_tokens=args.max_new_tokens,
        max_step_ms=args.max_step_ms,
        seed=args.seed,
        about=_about(args, entries),
    )
    decoder = load_decoder(args)
    kept = out.with_name(out.name + ".measured")
    tuner = Tuner(
        decoder,
        _drafter(args, decoder),
        _prompts(decoder, entries),
        task,
        Measured(kept, {**task.about, **_asked(task)}),
    )
    try:
        with progress(tuner.most_parts, log=True) as advance:
            tuned = replace(tuner, advance=advance).run()
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {kept}", file=sys.stderr)
        raise
    tuned.policy.save(out)
    if args.report is not None:
        write_report(args.report, tuned, tuner.prompts)
    print(summary(tuned))
    print(f"policy: {out}; use it: treeattn generate --policy {out} ...")
    return 0


def _asked(task: Task) -> dict[str, Any]:
    names = ("drafter", "batch_sizes", "max_new_tokens", "max_step_ms", "seed")
    return {name: getattr(task, name) for name in names}


def _about(args: argparse.Namespace, entries: list[dict[str, Any]]) -> dict[str, Any]:
    model = model_path(args.model)
    return {
        "treeattn": _library.package_version(),
        "torch": torch.__version__,
        "model": f"{model.name}, {_size(model)} bytes",
        "dtype": args.dtype,
        "draft_head": None if args.draft_head is None else args.draft_head.name,
        "machine": _cpu_name(),
        "threads": torch.get_num_threads(),
        "prompts": hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16],
    }


def _size(model: Path) -> int:
    files = model.rglob("*.safetensors") if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files)


def _cpu_name() -> str:
    """As Linux has it, or the kind of machine elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _entries(file: Path | None) -> list[dict[str, Any]]:
    """What `--prompts` holds, checked as far as it can be without the model."""
    source = file or files("treeattn.tune") / "prompts.json"
    try:
        entries = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--prompts {file} must be a JSON file: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"--prompts {file} must hold a list of at least one prompt")
    names: set[str] = set()
    for index, entry in enumerate(entries):
        where = f"--prompts {file}, entry {index}"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ValueError(f"{where} must be an object with a name, got {entry!r}")
        where += f" ({entry['name']})"
        if entry["name"] in names:
            raise ValueError(f"{where}: names must differ")
        names.add(entry["name"])
        if entry.get("kind", KINDS[0]) not in KINDS:
            raise ValueError(
                f"{where}: kind must be one of {', '.join(KINDS)}, got {entry['kind']!r}"
            )
        ids = entry.get("prompt_ids")
        are_ids = isinstance(ids, list) and all(type(token) is int for token in ids)
        if not are_ids and not isinstance(entry.get("prompt"), str):
            raise ValueError(f"{where} must have a prompt, a text, or prompt_ids, a list of ids")
    return entries


def _prompts(decoder: Decoder, entries: list[dict[str, Any]]) -> tuple[Prompt, ...]:
    from treeattn.tune.run import Prompt

    found = []
    most, vocab_size = decoder.config.max_position - 1, decoder.config.vocab_size
    for entry in entries:
        ids = entry.get("prompt_ids")
        if ids is None:
            if decoder.tokenizer is None:
                raise ValueError("--prompts are text, but the checkpoint has no tokenizer")
            ids = decoder.tokenizer.encode_prompt(entry["prompt"])
        if not 1 <= len(ids) <= most:
            raise ValueError(
                f"--prompts, {entry['name']}: must have 1 to {most} tokens, got {len(ids)}"
            )
        if not all(0 <= token < vocab_size for token in ids):
            raise ValueError(f"--prompts, {entry['name']}: ids must be in [0, {vocab_size})")
        found.append(Prompt(entry["name"], entry.get("kind", "mixed"), tuple(ids)))
    return tuple(found)


def _drafter(args: argparse.Namespace, decoder: Decoder) -> Drafter:
    """An object: recordings look over its shoulder."""
    from treeattn.decoder.drafters import PromptLookup, SuffixDraft

    made = make_drafter(args, decoder)
    if isinstance(made, str):
        made = SuffixDraft() if made == "suffix" else PromptLookup()
    drafter: Drafter = made
    return drafter


def _batch_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise ValueError(f"--batch-sizes must be numbers >= 1 with commas between, got {text!r}")
    return sizes
