"""Does a deployment still deliver its tokens as fast as its baseline?"""

from __future__ import annotations

import pytest

from fixtures.session.replay_clock import CLOCK

pytestmark = pytest.mark.perf


@pytest.mark.only("single stream")
@pytest.mark.benchmark(group="decode: seconds per token", timer=CLOCK)
def test_decode_rate(judge, samples, deployment, workload):
    """The decode rate of one request, tok/s: the median over requests of tokens after the first / their time."""
    samples(lambda request: 1 / request.decode_tok_s)
    judge("decode_tok_s")


@pytest.mark.only("concurrent")
@pytest.mark.benchmark(group="closed loop: seconds per request", timer=CLOCK)
def test_output_rate(judge, samples, deployment, workload):
    """All tokens of all requests over the time of the closed loop, tok/s."""
    samples(lambda request: request.token_times_s[-1] - request.sent_s)
    judge("output_tok_s")
