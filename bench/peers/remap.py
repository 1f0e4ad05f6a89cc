# SPDX-License-Identifier: Apache-2.0
"""Moving the accepted rows with torch's index ops."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def make(planes: Tensor, source: Tensor, target: Tensor) -> dict[str, Callable[[], object]]:
    """planes: [num_planes, num_slots, row]; source, target: [moves] int64 slots."""
    layers = list(planes.unbind())

    def index_copy() -> None:
        for layer in layers:
            layer.index_copy_(0, target, layer.index_select(0, source))

    def setitem() -> None:
        for layer in layers:
            layer[target] = layer[source]

    def stacked() -> None:
        planes.index_copy_(1, target, planes.index_select(1, source))

    return {
        "index_copy_per_layer": index_copy,
        "setitem_per_layer": setitem,
        "index_copy_stacked": stacked,
    }
