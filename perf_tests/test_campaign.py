"""What does each approach of the campaign do on this stack, and is that still what is on record?"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.perf


def test_outcome(try_approach, approach):
    """Correctness first (its all-reduce alone, then its outputs by the replay rule), then the decode rate against the
    deployment without it. The recorded outcome passes, a worse one fails, a better one asks to be recorded."""
    try_approach(approach)
