# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test shares."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each machine that runs the ops; one test body serves them all."""
    return str(request.param)
