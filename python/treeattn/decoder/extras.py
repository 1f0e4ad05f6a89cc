# SPDX-License-Identifier: Apache-2.0
"""Optional dependencies, imported where they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, *, extra: str) -> Any:
    """Import `module`; ImportError names the pip command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} is needed here and not installed; run: pip install 'treeattn[{extra}]'"
        ) from error
