# SPDX-License-Identifier: Apache-2.0
"""Does the CUDA half load in this torch, and does every op have its CUDA kernel? Needs no GPU."""

from __future__ import annotations

import sys

import torch
import treeattn
from treeattn import _library

OPS = ("plan_tree", "write_kv", "tree_attention", "accept_path", "remap_kv", "merge_states")


def main() -> int:
    if not _library.CUDA.loaded:
        print(f"cuda: not loaded under torch {torch.__version__}: {_library.CUDA.reason}")
        return 1
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = [op for op in OPS if not has_kernel(f"treeattn::{op}", "CUDA")]
    if missing:
        print(f"cuda: no kernel for {', '.join(missing)}")
        return 1
    archs = _library.archs()
    print(
        f"cuda: {len(OPS)} ops of {treeattn.__name__} for {archs} under torch {torch.__version__}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
