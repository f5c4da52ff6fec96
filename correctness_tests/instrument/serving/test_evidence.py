"""Times that are no evidence: tokens read in bunches, whatever rate that looks like, are left out, counted and told."""

from __future__ import annotations

import math
import random

import pytest

from fixtures.errors import MeasurementFailed
from fixtures.records.measure import workload_metrics
from fixtures.serving.client_results import RequestResult, WorkloadResult

PASS_S = 0.0065


def request(times: list[float], name: str = "p", passes: int | None = None) -> RequestResult:
    return RequestResult(name, 20, len(times), 0, 0.0, tuple(times), "length", verify_passes=passes)


def steady(tokens: int = 80, step: float = 0.01, first: float = 0.1) -> list[float]:
    return [first + step * index for index in range(tokens)]


BUNCHES = {
    "all at once": [1.4] * 4,
    "two reads": [1.4] * 48 + [1.4007] * 48,
    "a slow end": [1.4] * 40 + [9.4] * 40,
    "eight reads": [1.4 + 0.1 * (index // 10) for index in range(80)],
}


@pytest.mark.parametrize("bunch", BUNCHES)
def test_tokens_that_were_read_together_are_no_evidence(bunch: str) -> None:
    """Those that look fast, and those that look slow or right: the rule does not look at the rate."""
    assert f"{len(BUNCHES[bunch])} passes came in" in request(BUNCHES[bunch]).bunched()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("bunch", BUNCHES)
def test_the_rule_does_not_look_at_the_rate(bunch: str, scale: float) -> None:
    assert request([moment * scale for moment in BUNCHES[bunch]]).bunched() == request(BUNCHES[bunch]).bunched()
    assert not request([moment * scale for moment in steady()]).bunched()


def test_a_pause_in_the_middle_and_passes_read_in_pairs_are_evidence() -> None:
    assert not request(steady(40) + [2.0] * 20 + steady(20, first=2.01)).bunched(PASS_S)
    assert not request([0.1 + 0.02 * (index // 2) for index in range(80)]).bunched(PASS_S)


def test_speculation_is_asked_by_its_passes() -> None:
    """Three tokens come together from each pass, not one."""
    times = [0.1] + [0.12 + 0.02 * (index // 3) for index in range(60)]
    assert not request(times, passes=20).bunched(0.015)
    assert "61 tokens of 21 passes" in request([0.1] + [0.12] * 30 + [0.14] * 30, passes=20).bunched()


def test_a_rate_that_the_passes_do_not_allow_is_no_evidence() -> None:
    """A full buffer that is read in thirty-two pieces of 0.1 ms: apart, and far too near to one another."""
    drained = [1.4 + 0.0001 * (index // 3) for index in range(96)]
    assert not request(drained).bunched()
    assert "passes take" in request(drained).bunched(PASS_S)
    assert not request(steady(96, step=PASS_S)).bunched(PASS_S)
    assert not request(steady(96, step=PASS_S * 0.6)).bunched(PASS_S), "beyond doubt, not by a little"


def result(requests: list[RequestResult]) -> WorkloadResult:
    return WorkloadResult("w", 1, tuple(requests), 20.0, warm_up_requests=1)


def series(count: int, bunched: int) -> WorkloadResult:
    noise = random.Random(7)
    sound = [request(steady(step=0.01 * (1 + noise.gauss(0, 0.01))), f"p{index}") for index in range(count - bunched)]
    return result(sound + [request(BUNCHES["two reads"], f"b{index}") for index in range(bunched)])


def test_a_request_without_evidence_is_left_out_and_counted() -> None:
    found = series(12, 1).without_bunched()
    assert list(found.left_out) == ["b0"]
    metrics = {metric.name: metric for metric in workload_metrics(found, speculative=False)}
    sound = {metric.name: metric for metric in workload_metrics(series(11, 0), speculative=False)}
    for name in ("decode_tok_s", "ttft_ms", "itl_ms"):
        assert metrics[name].value == sound[name].value
        assert metrics[name].samples == 11
    assert metrics["output_tok_s"].value == pytest.approx((11 * 80 + 96) / 20.0), "its tokens count all the same"
    assert WorkloadResult.from_json(found.to_json()).left_out == found.left_out


@pytest.mark.parametrize(("count", "most"), [(2, 0), (4, 1), (12, 1), (64, 6)])
def test_at_most_so_many_are_left_out(count: int, most: int) -> None:
    assert len(series(count, most).without_bunched().left_out) == most
    with pytest.raises(MeasurementFailed, match=f"{most + 1} of {count} requests are no evidence.*request b0: its 96"):
        series(count, most + 1).without_bunched()


def test_a_single_burst_has_no_rate() -> None:
    """As an old record may hold it: a hole, not a number."""
    assert math.isnan(request([1.4] * 4).decode_tok_s)
    assert math.isnan(workload_metrics(result([request([1.4] * 4)]), speculative=False)[0].value)
