# SPDX-License-Identifier: Apache-2.0
"""Address space without memory behind it: only the touched pages come to exist."""

from __future__ import annotations

import mmap

import pytest
import torch
from torch import Tensor

NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def untouched_memory(num_elements: int, dtype: torch.dtype) -> Tensor:
    """[num_elements], zeros that take no memory until they are written."""
    size = num_elements * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    try:
        memory = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)
    except OSError as error:
        pytest.skip(f"no address space of {size} bytes here: {error}")
    return memory.view(dtype)
