# SPDX-License-Identifier: Apache-2.0
"""The command line `treeattn`."""

from treeattn.cli.main import main

__all__ = ["main"]
