# SPDX-License-Identifier: Apache-2.0
"""Ops of a device for tests whose tensors lie in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ThroughDevice:
    """Stands for torch.ops.treeattn. Each call copies whole storages to the device, so that views
    keep their strides and what they share; runs the op there; and copies back what it changed."""

    def __init__(self, ops: Any, device: str) -> None:
        self._ops = ops
        self._device = device

    def __getattr__(self, name: str) -> Callable[..., None]:
        op = getattr(self._ops, name)

        def call(*args: Any) -> None:
            copies: dict[int, tuple[Tensor, Tensor]] = {}
            op(*(self._moved(arg, copies) for arg in args))
            for on_host, on_device in copies.values():
                result = on_device.cpu()
                if not torch.equal(on_host, result):
                    on_host.copy_(result)

        return call

    def _moved(self, arg: Any, copies: dict[int, tuple[Tensor, Tensor]]) -> Any:
        if isinstance(arg, list):
            return [self._moved(x, copies) for x in arg]
        if not isinstance(arg, Tensor):
            return arg
        storage = arg.untyped_storage()
        address = storage.data_ptr()
        if address not in copies:
            on_host = torch.empty(0, dtype=torch.uint8).set_(storage)
            copies[address] = on_host, torch.empty_like(on_host, device=self._device).copy_(on_host)
        moved = torch.empty(0, dtype=arg.dtype, device=self._device)
        there = copies[address][1].untyped_storage()
        return moved.set_(there, arg.storage_offset(), arg.size(), arg.stride())
