"""Latency metrics: the definition of nccl-tests, and figures that cannot be confused with one another."""

from __future__ import annotations

import pytest

from fixtures.records.latency import bus_bandwidth, latency_metrics

pytestmark = pytest.mark.correctness


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_that_of_nccl_tests(ranks: int, factor: float) -> None:
    assert bus_bandwidth(1_000_000, 0.001, ranks) == pytest.approx(1e9 * factor)


def test_metrics_are_the_median_round_and_the_exact_bytes() -> None:
    latency, size = latency_metrics("ring", 43008, 8, [3e-4, 1e-4, 2e-4])
    assert latency.key == "all-reduce-ring-8-ranks-43008-bytes-eager/all_reduce_us"
    assert (latency.value, latency.kind, latency.better, latency.samples) == (pytest.approx(200), "timing", "lower", 3)
    assert (size.value, size.kind, size.better) == (43008, "exact", "same")
    assert latency_metrics("ring", 43008, 8, [1e-4], "graph")[0].key != latency.key
