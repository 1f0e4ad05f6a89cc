# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: `python -m bench.cpu` measures treeattn, its peers and the machine's floor."""
