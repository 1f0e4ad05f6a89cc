# SPDX-License-Identifier: Apache-2.0
"""Zeros that are not there until they are read, so that a test can count what was."""

from __future__ import annotations

import mmap
import os

import torch


class Zeros:
    """A float32 tensor [rows, row_bytes / 4] in a file of holes: the first read of a page fills it.

    Rows are whole pages, so that the pages that exist tell which rows were read, exactly and
    whatever else the machine does.
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        if row_bytes % mmap.PAGESIZE:
            raise ValueError(f"row_bytes {row_bytes} is not a multiple of a page")
        self._row_bytes = row_bytes
        self._file = os.memfd_create("zeros")
        os.ftruncate(self._file, rows * row_bytes)
        memory = mmap.mmap(self._file, rows * row_bytes)
        self.tensor = torch.frombuffer(memory, dtype=torch.float32).view(rows, -1)

    def rows_read(self) -> float:
        return os.fstat(self._file).st_blocks * 512 / self._row_bytes

    def __del__(self) -> None:
        os.close(self._file)


def are_counted() -> bool:
    """Whether holes can be made here, and are filled page by page: huge pages are not."""
    if not hasattr(os, "memfd_create"):
        return False
    zeros = Zeros(4, mmap.PAGESIZE)
    zeros.tensor[1].sum()
    return zeros.rows_read() == 1
