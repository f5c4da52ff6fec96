"""Is this deployment slower than the other side, measured in the same session in alternating blocks?"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.perf


@pytest.mark.only("single stream")
def test_decode_rate_against(judge_pairs, deployment, workload):
    """The decode rate of one request, tok/s."""
    judge_pairs("decode_tok_s")


@pytest.mark.only("concurrent")
def test_output_rate_against(judge_pairs, deployment, workload):
    """All tokens of all requests over the time of the closed loop, tok/s."""
    judge_pairs("output_tok_s")


def test_time_to_first_token_against(judge_pairs, deployment, workload):
    """The median over requests, milliseconds."""
    judge_pairs("ttft_ms")
