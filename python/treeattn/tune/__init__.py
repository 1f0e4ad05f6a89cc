# SPDX-License-Identifier: Apache-2.0
"""Measuring what drafting pays on a given model and machine, and writing it down as a policy."""
