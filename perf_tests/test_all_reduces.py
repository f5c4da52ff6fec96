"""How often does a forward pass communicate, and how much?"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.perf, pytest.mark.only("tensor parallel", "single stream")]


def test_all_reduces_per_pass(judge, deployment, workload):
    """Exact: two for each layer (after attention and after the MLP), and whatever else the model needs."""
    judge("all_reduces_per_pass")


def test_bytes_per_all_reduce(judge, deployment, workload):
    """Exact: tokens in the pass × hidden size × bytes of the wire type."""
    judge("bytes_per_all_reduce")
