# SPDX-License-Identifier: Apache-2.0
"""Which GPUs this process may use, asked of the driver's management library.

torch would have to start CUDA to tell, which costs memory and forbids a later fork.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

_NAME_BYTES = 96


class Gpu(NamedTuple):
    name: str
    capability: tuple[int, int]


def visible() -> list[Gpu]:
    """The GPUs left by CUDA_VISIBLE_DEVICES; empty where that cannot be told."""
    gpus = _all()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    indices = [item.strip() for item in chosen.split(",")]
    if not all(index.isdigit() and int(index) < len(gpus) for index in indices):
        return []
    return [gpus[int(index)] for index in indices]


def _all() -> list[Gpu]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [gpu for index in range(count.value) if (gpu := _gpu(nvml, index)) is not None]
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: ctypes.CDLL, index: int) -> Gpu | None:
    handle = ctypes.c_void_p()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        or nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES)
        or nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    return None if failed else Gpu(name.value.decode(), (major.value, minor.value))
