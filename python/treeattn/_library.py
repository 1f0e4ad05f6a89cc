# SPDX-License-Identifier: Apache-2.0
"""Loads the extension and remembers why it could not be loaded."""

from __future__ import annotations

load_error: ImportError | None = None
try:
    from treeattn import _C as _C
except ImportError as error:
    load_error = error


def require() -> None:
    """Raise ImportError with the remedy when the ops are not there."""
    if load_error is not None:
        raise ImportError(
            f"treeattn's ops could not be loaded ({load_error}); run `treeattn doctor`, or "
            "reinstall with: pip install --no-build-isolation --force-reinstall ."
        ) from load_error
