"""How many tokens does the KV cache hold?"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.perf


def test_kv_capacity(judge, deployment):
    """Exact: the same on every start of a box, so any change is a verdict."""
    judge("kv_tokens")
