# SPDX-License-Identifier: Apache-2.0
"""The options of every subcommand. Imports nothing heavy: the doctor must work without torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from treeattn.doctor import RULES

DTYPE_NAMES = ("float32", "bfloat16", "float16")
_EPILOG = """\
The JSON file (or - for standard input) holds one object; only "parents" is required:
  {"parents": [-1, 0, 0, 1],          parent of each node, -1 for the root, parents[i] < i
   "labels":  [" The", " cat", " dog", " sat"],   text of each node
   "tokens":  [504, 2644, 2767, 3578],            ids, shown where there are no labels
   "scores":  [0, -0.2, -1.9, -0.5],              log probability of the path to each node
   "accepted": [0, 1, 3], "bonus": " on",         what the target took, root first, and added
   "title": "step 3"}

examples:
  treeattn show --paths "the cat sat" "the cat ran" "the dog"
  treeattn show tree.json --svg tree.svg
"""
_SIMULATE_EPILOG = """\
The cost file holds one object; only "verify" is required, what is left out takes no time:
  {"verify": [[rows, context, ms], ...],   rows: nodes of the whole batch, roots included
   "draft":  [[level, width, ms], ...],    width: nodes of the whole batch asked at that level
   "accept": [[rows, ms], ...], "remap": [[rows, ms], ...],
   "about":  {"verify": "measured: ...", "draft": "assumed: ..."}}
or such tables by batch size: {"batches": {"1": {...}, "16": {...}}, "about": {...}}; or both, and
then a batch size takes from the whole what it leaves out. A policy file is a cost file as well.
The acceptance file: {"acceptance": [[0.7, 0.1], [0.6, 0.1]], "about": "measured: ..."}

examples:
  treeattn simulate --costs costs.json --recording drafts.jsonl
  treeattn simulate --costs costs.json --alpha 0.6,0.8 --siblings 0.4 --report report
"""


def add_demo(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "demo", help="decode real prompts with a draft tree, and compare with plain decoding"
    )
    _add_model_options(parser)
    _add_draft_head(parser, "draft with this EAGLE-style head instead of a suffix trie")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of a draft with its root")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N")
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='a JSON list of {"name": ..., "prompt": text or "prompt_ids": ids}',
    )
    parser.add_argument("--repeats", type=int, default=3, help="interleaved; medians are reported")
    parser.add_argument("--quick", action="store_true", help="two prompts, 32 tokens, one repeat")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the drawn tree there too")


def add_generate(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("generate", help="continue a prompt with speculative decoding")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("prompt", nargs="?", help="the user's message")
    source.add_argument("--file", type=Path, metavar="FILE", help="read it from a file")
    _add_model_options(parser)
    parser.add_argument(
        "--drafter",
        metavar="none|lookup|suffix|layer_skip|eagle|PATH",
        help="where drafts come from; PATH is a smaller model (default: the policy's, or suffix)",
    )
    _add_draft_head(parser, "the head that --drafter eagle drafts with")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--tree", dest="shape", action="store_const", const="tree")
    shape.add_argument("--chain", dest="shape", action="store_const", const="chain")
    parser.add_argument("--nodes", type=int, help="nodes of a draft with its root (default: 16)")
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="what `treeattn tune` wrote: it decides how much to draft, in place of --nodes, "
        "--tree and --chain",
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument(
        "--rule",
        choices=RULES,
        help="how drafted tokens are accepted (default: target, greedy at temperature 0)",
    )
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0 is off")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 is off")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0 is off")
    parser.add_argument("--seed", type=int, help="makes sampling repeatable")
    parser.add_argument("--json", action="store_true", help="print ids, text and numbers as JSON")


def add_tune(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "tune", help="measure what drafting pays on this machine, and write a policy"
    )
    _add_model_options(parser)
    parser.add_argument(
        "--drafter",
        default="suffix",
        metavar="suffix|lookup|eagle|PATH",
        help="where drafts come from; PATH is a smaller model (default: suffix)",
    )
    _add_draft_head(parser, "the head that --drafter eagle drafts with")
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='a JSON list of {"name": ..., "kind": "copy" | "mixed" | "free", "prompt": text or '
        '"prompt_ids": ids} (default: ten kinds that come with the package)',
    )
    parser.add_argument(
        "--batch-sizes", default="1,4", metavar="N,...", help="what to tune for (default: 1,4)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=24, metavar="N", help="per prompt")
    parser.add_argument(
        "--max-step-ms",
        type=float,
        metavar="MS",
        help="no step may take longer (default: any)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of drafts and sampling")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("policy.json"),
        metavar="FILE",
        help="the policy; FILE.measured holds what was measured, from which a run that was killed "
        "goes on (default: policy.json)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write Markdown, CSV and pictures there"
    )


def add_show(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "show",
        help="draw a draft tree in the terminal or as SVG",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", help="a JSON file, or - for standard input")
    source.add_argument("--paths", nargs="+", metavar="PATH", help="paths of words from the root")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write an SVG file instead")


def add_simulate(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "simulate",
        help="compare plain decoding, chains, trees and a policy on given costs, without a model",
        epilog=_SIMULATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", required=True, help="cost tables, or a policy file"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--recording", type=Path, metavar="FILE", help="drafts of a real run")
    source.add_argument(
        "--acceptance", type=Path, metavar="FILE", help="acceptance by depth and sibling rank"
    )
    source.add_argument(
        "--alpha", metavar="A[,A...]", help="the likeliest child's acceptance at every depth"
    )
    parser.add_argument(
        "--siblings",
        type=float,
        default=0.0,
        metavar="S",
        help="with --alpha: each sibling takes this share of what the likelier ones leave "
        "(default: 0, chains only)",
    )
    parser.add_argument("--batch-sizes", default="1,4,16,64", metavar="B[,B...]")
    parser.add_argument(
        "--chains", default="1,2,3,4,6,8", metavar="K[,K...]", help="drafted tokens; - for none"
    )
    parser.add_argument(
        "--trees",
        default="3x1,4x2,8x3,16x4,32x5,64x6",
        metavar="N[xD][,...]",
        help="nodes with the root, and most levels below it; - for none",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="judge this policy (default: one made on the first quarter of the recordings)",
    )
    imagined = parser.add_argument_group("with --acceptance or --alpha")
    imagined.add_argument(
        "--context", type=int, default=1024, metavar="N", help="longest context (default: 1024)"
    )
    imagined.add_argument("--requests", type=int, default=32, metavar="N", help="(default: 32)")
    imagined.add_argument(
        "--tokens", type=int, default=256, metavar="N", help="of each request (default: 256)"
    )
    imagined.add_argument("--seed", type=int, default=0, help="the same one, the same result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write report.md, settings.csv and a plot there"
    )


def add_doctor(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("doctor", help="what this machine can run, and why not")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_draft_head(parser: argparse.ArgumentParser, use: str) -> None:
    """The folder of a head; its trees are those of `Decoder.load_draft_head`."""
    parser.add_argument("--draft-head", type=Path, metavar="FOLDER", help=use)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which weights, and how they are held."""
    parser.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="a GGUF file or a safetensors folder (default: the installed SmolLM2-135M-Instruct)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPE_NAMES,
        default="float32",
        help="of weights and KV (default: float32)",
    )
