# SPDX-License-Identifier: Apache-2.0
"""Parses the command line and hands over to one subcommand."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence

from treeattn import _library
from treeattn.cli import options
from treeattn.doctor import doctor

NEED_EXTENSION = ("demo", "generate", "tune")
NEED_HOST = (*NEED_EXTENSION, "simulate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `treeattn`; returns the exit status (0 ok, 1 a fault was found, 2 it could not run)."""
    args = _parser().parse_args(argv)
    try:
        if args.command == "doctor":
            return _doctor(args)
        if args.command in NEED_EXTENSION:
            _library.require(_library.OPS)
        if args.command in NEED_HOST:
            _library.require(_library.HOST)
        # Imported here, because torch may be missing, and the doctor has to say so.
        command = importlib.import_module(f"treeattn.cli.{args.command}")
        return int(command.run(args))
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, ImportError, OSError, RuntimeError) as error:
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
    options.add_demo(commands)
    options.add_generate(commands)
    options.add_tune(commands)
    options.add_show(commands)
    options.add_simulate(commands)
    options.add_doctor(commands)
    return parser


def _doctor(args: argparse.Namespace) -> int:
    report = doctor()
    print(json.dumps(report, indent=2) if args.json else report)
    return 1 if report.faults else 0
