# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: `python -m bench.cpu` measures treeattn, its peers and the machine's floor."""

import os
import sys
from pathlib import Path

# torch reads this once: tensors of 2 MiB and more lie on huge pages, those of the peers too. A KV
# row of 8 heads x 128 floats is a 4 KiB page of its own, so without it every candidate waits for
# page translations (docs/benchmarks.md).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Where no treeattn is installed, the one beside this folder is measured.
sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))
