"""How long does a user wait, for the first token and for each one after it?"""

from __future__ import annotations

import pytest

from fixtures.session.replay_clock import CLOCK

pytestmark = pytest.mark.perf


@pytest.mark.benchmark(group="TTFT", timer=CLOCK)
def test_time_to_first_token(judge, samples, deployment, workload):
    """The median over requests, from sending a request to its first token; milliseconds."""
    samples(lambda request: request.ttft_s)
    judge("ttft_ms")


@pytest.mark.only("concurrent")
def test_inter_token_latency(judge, deployment, workload):
    """The median over all tokens after the first, milliseconds. (Of one stream it is the decode rate's inverse.)"""
    judge("itl_ms")


@pytest.mark.only("enough for a p99")
@pytest.mark.parametrize("metric", ["ttft_p99_ms", "itl_p99_ms"])
def test_tail_latency(judge, deployment, workload, metric):
    """The 99th percentile; asked only of workloads with the requests that it needs."""
    judge(metric)
