# SPDX-License-Identifier: Apache-2.0
"""Which KV blocks belong to which sequence. The classes are C++ (`csrc/host/block_pool.h`)."""

from treeattn._host import BlockPool, OutOfBlocks, UnknownSequence

__all__ = ["BlockPool", "OutOfBlocks", "UnknownSequence"]
