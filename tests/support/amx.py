# SPDX-License-Identifier: Apache-2.0
"""Whether oneDNN's bf16 products run on AMX tiles, whose sums depend on the number of rows."""

from __future__ import annotations

import pytest
import torch

HAS_AMX = bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
without_amx = pytest.mark.skipif(
    HAS_AMX, reason="with AMX a bf16 row's bits depend on the number of rows (README)"
)
