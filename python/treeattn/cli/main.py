# SPDX-License-Identifier: Apache-2.0
"""Parses the command line and hands over to one subcommand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from treeattn import _library
from treeattn.cli import demo, generate, show
from treeattn.doctor import doctor


def main(argv: Sequence[str] | None = None) -> int:
    """Run `treeattn`; returns the exit status (0 ok, 1 the run failed, 2 bad use)."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (ValueError, ImportError, OSError) as error:
        print(f"treeattn {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="treeattn", description="Tree-structured speculative decoding for PyTorch."
    )
    parser.add_argument(
        "--version", action="version", version=f"treeattn {_library.package_version()}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    demo.add_parser(commands)
    generate.add_parser(commands)
    show.add_parser(commands)
    diagnose = commands.add_parser("doctor", help="what this machine can run, and why not")
    diagnose.add_argument("--json", action="store_true", help="print the report as JSON")
    diagnose.set_defaults(run=_doctor)
    return parser


def _doctor(args: argparse.Namespace) -> int:
    report = doctor()
    print(json.dumps(report, indent=2) if args.json else report)
    return 1 if report.faults else 0
