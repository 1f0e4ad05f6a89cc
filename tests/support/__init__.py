# SPDX-License-Identifier: Apache-2.0
"""Builders that several tests share."""
