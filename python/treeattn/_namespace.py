# SPDX-License-Identifier: Apache-2.0
"""The ops as the compiled modules registered them, reached from one place."""

from __future__ import annotations

import torch
from torch import Tensor

ops = torch.ops.treeattn  # tests put the emulator's ops here
emulated_ctas = 5  # CTAs that share the work there


def runs_on_device(tensor: Tensor) -> bool:
    """Whether kernels of csrc/cuda get this tensor, and the workspaces that they need."""
    return not tensor.is_cpu or ops is not torch.ops.treeattn


def num_ctas(q: Tensor) -> int:
    """CTAs that share tree_attention's work: as many as fit the multiprocessors at once."""
    if not q.is_cuda:
        return emulated_ctas
    # attention_ctas_per_sm of csrc/cuda/tree_attention/tree_attention.h
    per_multiprocessor = 3 if q.shape[-1] <= 64 else 2
    return per_multiprocessor * torch.cuda.get_device_properties(q.device).multi_processor_count
