"""Tests that are known to fail now and then: they run and are reported, and fail no run.

At most five, each with its reason; `scripts/suite.py` prints them. An empty list is what is aimed at.
"""

from __future__ import annotations

import pytest

QUARANTINE: dict[str, str] = {}  # the id of a test: why it is here
MOST = 5


def excuse(items: list[pytest.Item]) -> None:
    """Let the tests of the list fail without failing the run."""
    assert len(QUARANTINE) <= MOST, "cure a test before another one comes into quarantine"
    for item in items:
        if reason := QUARANTINE.get(item.nodeid):
            item.add_marker(pytest.mark.xfail(reason=f"in quarantine: {reason}", strict=False))
