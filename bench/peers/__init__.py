# SPDX-License-Identifier: Apache-2.0
"""What PyTorch users would run instead, each as fast as plain PyTorch lets it be."""
