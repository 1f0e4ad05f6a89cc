# SPDX-License-Identifier: Apache-2.0
"""The ops as the compiled modules registered them, reached from one place."""

from __future__ import annotations

import torch
from torch import Tensor

ops = torch.ops.treeattn  # tests put the emulator's ops here


def runs_on_device(tensor: Tensor) -> bool:
    """Whether kernels of csrc/cuda get this tensor, and the workspaces that they need."""
    return not tensor.is_cpu or ops is not torch.ops.treeattn
