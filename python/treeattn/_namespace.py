# SPDX-License-Identifier: Apache-2.0
"""The ops as the compiled modules registered them, reached from one place."""

from __future__ import annotations

import torch

ops = torch.ops.treeattn  # tests put the emulator's ops here
