"""How long does one all-reduce take, by backend and size, at the sizes that serving uses?

The ranks time themselves, once for each start of theirs; pytest-benchmark is given that clock instead of its own, so
that talking to the ranks is not measured.
"""

from __future__ import annotations

import statistics

import pytest

from fixtures.records.latency import bus_bandwidth
from fixtures.session.replay_clock import CLOCK

pytestmark = pytest.mark.perf


@pytest.mark.benchmark(timer=CLOCK, group="all-reduce: seconds per call")
def test_all_reduce_latency(run, judge_ranks, ranks, mode, nbytes, benchmark):
    """The median over rounds of the slowest rank's time for one all-reduce, µs."""
    workload = ranks.workload(mode, nbytes)
    starts = [record.all_reduces[workload] for record in run.source.stage1(ranks) if workload in record.all_reduces]
    seconds = [each for start in starts for each in start["seconds"]]
    if seconds:
        CLOCK.replay(benchmark, seconds)
        bandwidth = bus_bandwidth(nbytes, statistics.median(seconds), ranks.world_size)
        benchmark.extra_info.update(starts=len(starts), bus_bandwidth_gb_s=round(bandwidth / 1e9, 4))
    judge_ranks(f"{workload}/all_reduce_us")


def test_all_reduce_bytes(judge_ranks, ranks, mode, nbytes):
    """Exact: what one call puts on the wire has the size that it says."""
    judge_ranks(f"{ranks.workload(mode, nbytes)}/all_reduce_bytes")
