# SPDX-License-Identifier: Apache-2.0
"""Tree-structured speculative decoding for PyTorch."""

from treeattn.doctor import doctor

__all__ = ["doctor"]
