# SPDX-License-Identifier: Apache-2.0
"""The ops as the compiled modules registered them, reached from one place."""

from __future__ import annotations

import torch
from torch import Tensor

ops = torch.ops.treeattn  # tests put the emulator's ops here
emulated_ctas = 5  # CTAs that share the work there


def runs_cuda_kernels(tensor: Tensor) -> bool:
    """Whether ops on `tensor` run the kernels that need the plan's work and a workspace."""
    return tensor.is_cuda or ops is not torch.ops.treeattn


def num_ctas(tensor: Tensor) -> int:
    """CTAs that share an op's work where `tensor` lies: two per multiprocessor."""
    if not tensor.is_cuda:
        return emulated_ctas
    return 2 * torch.cuda.get_device_properties(tensor.device).multi_processor_count
