# SPDX-License-Identifier: Apache-2.0
"""Faults that tools/simt_mutants.py puts into the CUDA kernels, and the tests that catch each."""

from simt_faults import accept, attention, other, remap
from simt_faults.fault import Fault

FAULTS = [*other.FAULTS, *attention.FAULTS, *accept.FAULTS, *remap.FAULTS]

__all__ = ["FAULTS", "Fault"]
