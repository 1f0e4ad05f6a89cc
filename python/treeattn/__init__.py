# SPDX-License-Identifier: Apache-2.0
"""Tree-structured speculative decoding for PyTorch."""
