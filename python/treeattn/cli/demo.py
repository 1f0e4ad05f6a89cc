# SPDX-License-Identifier: Apache-2.0
"""`treeattn demo`: one drawn tree, then plain, chain and tree decoding side by side."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from treeattn import _library, draw
from treeattn.cli.baseline import PlainTorch
from treeattn.cli.model import DTYPES, load_decoder, model_path
from treeattn.cli.progress import progress
from treeattn.cli.recorder import Recorder, pictures, telling

if TYPE_CHECKING:
    from treeattn.decoder import Decoder, Drafter

WARM_UP_TOKENS = 8
PHASES = ("prefill", "draft", "verify", "accept", "remap")


@dataclass
class Run:
    """One variant over all prompts, once."""

    outputs: list[list[int]] = field(default_factory=list)
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    wall: float = 0.0

    @property
    def decode_seconds(self) -> float:
        """Wall time without reading the prompts."""
        return self.wall - self.seconds["prefill"]


Prompts = Sequence[Sequence[int]]
Variant = Callable[[Prompts, int], Run]  # token ids of the prompts, tokens to generate for each


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when fp32 output differs from plain decoding: that is a defect."""
    source = args.prompts or files("treeattn.cli") / "demo_prompts.json"
    prompts = json.loads(source.read_text("utf-8"))
    if args.quick:
        prompts, args.max_new_tokens, args.repeats = prompts[:2], 32, 1
    decoder = load_decoder(args)
    if decoder.tokenizer is None:
        raise ValueError("the demo needs a checkpoint with a tokenizer")
    ids = [
        entry.get("prompt_ids") or decoder.tokenizer.encode_prompt(entry["prompt"])
        for entry in prompts
    ]
    head = None if args.draft_head is None else decoder.load_draft_head(args.draft_head)
    variants = _variants(args, decoder, head or "suffix")

    names = [entry["name"] for entry in prompts]
    with progress(2 + len(variants) * args.repeats) as advance:
        advance("looking for a tree worth drawing")
        picture = _picture(args, decoder, head, names, ids)
        advance("warming up")
        for variant in variants.values():
            variant(ids[:1], WARM_UP_TOKENS)
        runs: dict[str, list[Run]] = {name: [] for name in variants}
        for _ in range(args.repeats):
            for name, variant in variants.items():
                advance(f"decoding: {name}")
                runs[name].append(variant(ids, args.max_new_tokens))
    if picture is not None:
        draw.print_tree(picture)
        print()
        if args.svg is not None:
            args.svg.write_text(draw.to_svg(picture), encoding="utf-8")
    report = {
        "treeattn": _library.package_version(),
        "machine": platform.machine(),
        "dtype": args.dtype,
        "prompts": names,
        "max_new_tokens": args.max_new_tokens,
        "nodes": args.nodes,
        "drafter": "a suffix trie" if head is None else f"the head {args.draft_head}",
        "repeats": args.repeats,
        "variants": {name: _numbers(some, runs["plain"][0].outputs) for name, some in runs.items()},
    }
    print(_table(report))
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    ours = [numbers for name, numbers in report["variants"].items() if name != "torch"]
    return 0 if args.dtype != "float32" or all(n["identical_to_plain"] for n in ours) else 1


def _variants(
    args: argparse.Namespace, decoder: Decoder, drafter: str | Drafter
) -> dict[str, Variant]:
    """What is compared, in the order of the table."""

    def ours(**options: Any) -> Variant:
        return lambda prompts, budget: _decode(decoder, prompts, budget, options)

    variants: dict[str, Variant] = {}
    path = model_path(args.model)
    if PlainTorch.supports(path):
        baseline = PlainTorch(path, DTYPES[args.dtype])
        variants["torch"] = lambda prompts, budget: _decode_baseline(baseline, prompts, budget)
    variants["plain"] = ours(drafter="none", num_nodes=1)
    variants["chain"] = ours(drafter=drafter, shape="chain", num_nodes=args.nodes)
    variants["tree"] = ours(drafter=drafter, shape="tree", num_nodes=args.nodes)
    return variants


def _decode(
    decoder: Decoder, prompts: Prompts, max_new_tokens: int, options: Mapping[str, Any]
) -> Run:
    run = Run()
    for prompt in prompts:
        start = perf_counter()
        (result,) = decoder.generate([prompt], max_new_tokens=max_new_tokens, **options)
        run.wall += perf_counter() - start
        run.outputs.append(result.tokens)
        run.steps += result.stats.steps
        for phase in PHASES:
            run.seconds[phase] += result.stats.seconds[phase]
    return run


def _decode_baseline(baseline: PlainTorch, prompts: Prompts, max_new_tokens: int) -> Run:
    run = Run()
    for prompt in prompts:
        tokens, prefill, decode = baseline.generate(prompt, max_new_tokens)
        run.wall += prefill + decode
        run.seconds["prefill"] += prefill
        run.seconds["verify"] += decode
        run.outputs.append(tokens)
        run.steps += len(tokens)
    return run


def _picture(
    args: argparse.Namespace,
    decoder: Decoder,
    head: Drafter | None,
    names: Sequence[str],
    prompts: Prompts,
) -> draw.Picture | None:
    """The most telling step of tree decoding over the prompts."""
    from treeattn.decoder.drafters import SuffixDraft

    found: list[draw.Picture] = []
    for name, prompt in zip(names, prompts, strict=True):
        recorder = Recorder(head or SuffixDraft())
        (result,) = decoder.generate(
            [prompt], max_new_tokens=args.max_new_tokens, drafter=recorder, num_nodes=args.nodes
        )
        found += pictures(recorder.trees, [*prompt, *result.tokens], decoder.tokenizer, name)
    return max(found, key=telling, default=None)


def _numbers(runs: Sequence[Run], plain: Prompts) -> dict[str, Any]:
    """Medians over the repeats; counts are the same in each."""
    first = runs[0]
    count = sum(map(len, first.outputs))
    return {
        "tokens": count,
        "steps": first.steps,
        "tokens_per_step": count / first.steps,
        "tokens_per_second": median(count / run.decode_seconds for run in runs),
        "seconds": {phase: median(run.seconds[phase] for run in runs) for phase in PHASES},
        "identical_to_plain": all(run.outputs == list(plain) for run in runs),
    }


def _table(report: Mapping[str, Any]) -> str:
    variants = report["variants"]
    plain = variants["plain"]["tokens_per_second"]
    lines = [
        f"{len(report['prompts'])} prompts, greedy, {report['dtype']}, "
        f"at most {report['max_new_tokens']} tokens each, "
        f"drafts of {report['nodes']} nodes from {report['drafter']}",
        f"{'':<7}{'tokens/s':>9}{'speed-up':>10}{'tokens/step':>13}"
        + "".join(f"{phase + ' s':>11}" for phase in PHASES[1:])
        + "   identical to plain",
    ]
    for name, numbers in variants.items():
        speed = numbers["tokens_per_second"]
        seconds = "".join(f"{numbers['seconds'][phase]:>11.3f}" for phase in PHASES[1:])
        lines.append(
            f"{name:<7}{speed:>9.1f}{speed / plain:>9.2f}x{numbers['tokens_per_step']:>13.2f}"
            f"{seconds}   {'yes' if numbers['identical_to_plain'] else 'no'}"
        )
    if "torch" in variants:
        lines.append("torch: plain decoding in plain torch (F.linear, contiguous KV), same weights")
    return "\n".join(lines)
