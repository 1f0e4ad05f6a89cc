# SPDX-License-Identifier: Apache-2.0
"""`treeattn generate`: continue one prompt."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treeattn.cli.model import load_decoder, make_drafter
from treeattn.schedule import Policy

if TYPE_CHECKING:
    from treeattn.decoder import Decoder

DEFAULT_NODES = 16


def run(args: argparse.Namespace) -> int:
    """Load the model and decode: text as it comes, or one JSON object at the end."""
    prompt = args.prompt if args.file is None else args.file.read_text(encoding="utf-8")
    policy = _policy(args)
    if args.drafter is None:
        args.drafter = "suffix" if policy is None else policy.drafter
    decoder = load_decoder(args)
    options = {
        "max_new_tokens": args.max_new_tokens,
        "drafter": make_drafter(args, decoder),
        "num_nodes": DEFAULT_NODES if args.nodes is None else args.nodes,
        "shape": args.shape or "tree",
        "policy": policy,
        "rule": args.rule or ("greedy" if args.temperature == 0 else "target"),
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
    }
    if args.json:
        _print_json(decoder, prompt, options | {"seeds": args.seed})
    else:
        _stream(decoder, prompt, options | {"seed": args.seed})
    return 0


def _policy(args: argparse.Namespace) -> Policy | None:
    """The policy of `--policy`, if what else is asked for goes with it."""
    if args.policy is None:
        return None
    if not args.policy.is_file():
        raise ValueError(f"--policy {args.policy}: no such file")
    for option, value in (("--nodes", args.nodes), ("--tree or --chain", args.shape)):
        if value is not None:
            raise ValueError(f"--policy decides what {option} would, got both")
    policy = Policy.load(args.policy)
    tuned = policy.about.get("dtype", args.dtype)
    if args.dtype != tuned:
        raise ValueError(f"--policy {args.policy} was tuned with --dtype {tuned}, got {args.dtype}")
    if args.drafter not in (None, policy.drafter):
        raise ValueError(
            f"--policy {args.policy} was tuned with --drafter {policy.drafter}, got {args.drafter}"
        )
    return policy


def _print_json(decoder: Decoder, prompt: str, options: Mapping[str, Any]) -> None:
    start = time.perf_counter()
    (result,) = decoder.generate([prompt], **options)
    wall = time.perf_counter() - start
    print(
        json.dumps(
            {
                "text": result.text,
                "tokens": result.tokens,
                "finish_reason": result.finish_reason,
                "stats": _numbers(decoder, len(result.tokens)),
                "wall_seconds": wall,
            },
            ensure_ascii=False,
        )
    )


def _stream(decoder: Decoder, prompt: str, options: Mapping[str, Any]) -> None:
    from treeattn.decoder import TextStream

    if decoder.tokenizer is None:
        raise ValueError("this checkpoint has no tokenizer, so its output cannot be shown as text")
    text = TextStream(decoder.tokenizer)
    count = 0
    for token in decoder.stream(prompt, **options):
        print(text.feed(token), end="", flush=True)
        count += 1
    print(text.flush())
    if sys.stderr.isatty():
        numbers = _numbers(decoder, count)
        print(
            f"{count} tokens, {numbers['tokens_per_second']:.1f} a second, "
            f"{numbers['tokens_per_step']:.2f} a step",
            file=sys.stderr,
        )


def _numbers(decoder: Decoder, num_tokens: int) -> dict[str, Any]:
    stats = decoder.stats
    decoding = sum(seconds for phase, seconds in stats.seconds.items() if phase != "prefill")
    return {
        "steps": stats.steps,
        "drafted": stats.drafted,
        "accepted_per_step": stats.accepted,
        "seconds": stats.seconds,
        "tokens_per_step": num_tokens / max(1, stats.steps),
        "tokens_per_second": num_tokens / decoding if decoding else 0.0,
    }
