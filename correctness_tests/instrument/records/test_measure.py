"""Metrics of a start from figures worked out by hand, and NaN, never silence, where a figure is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fixtures.catalogue import P99_REQUESTS
from fixtures.errors import RecordError
from fixtures.records.measure import accept_length, measure, workload_metrics
from fixtures.records.metric import Metric
from fixtures.records.passes import Durations, Passes, PassKind, RankPasses
from fixtures.serving.client_results import RequestResult, WorkloadResult


def request(
    sent: float = 0.0,
    first: float = 0.1,
    step: float = 0.02,
    tokens: int = 11,
    per_step: int = 1,
    passes: int | None = None,
) -> RequestResult:
    times = [first + step * math.ceil(index / per_step) for index in range(tokens)]
    return RequestResult("p", 20, tokens, 0, sent, tuple(times), "length", verify_passes=passes)


def result(requests: list[RequestResult], name: str = "w", concurrency: int = 1, wall: float = 2.0) -> WorkloadResult:
    return WorkloadResult(name, concurrency, tuple(requests), wall, warm_up_requests=1)


def kind(mode: str, tokens: int, reduces: dict[int, int], size: int, seconds: tuple[float, ...] = ()) -> PassKind:
    count = sum(reduces.values())
    calls = sum(value * times for value, times in reduces.items())
    timed = Durations(len(seconds), sum(seconds), seconds)
    return PassKind("target", mode, tokens, count, 0, timed, reduces, {size: calls})


def passes(*kinds: PassKind) -> Passes:
    return Passes((RankPasses(0, 1, 1, "0.5.23", "cpu", (), kinds),))


VERIFY = kind("target_verify", 4, {12: 3}, 2048, (0.003, 0.0035, 0.009))
DECODE = kind("decode", 1, {12: 40}, 512)
PREFILL = kind("extend", 20, {12: 1}, 10240, (0.5,))


def by_key(metrics: list[Metric]) -> dict[str, Metric]:
    keys = [metric.key for metric in metrics]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, metrics, strict=True))


def test_plain_figures() -> None:
    metrics = by_key(
        measure(
            [result([request(), request(sent=0.05), request(step=0.04)])],
            {"max_total_num_tokens": 20000, "max_total_tokens": 20000},
            speculative=False,
            tensor_parallel=False,
        )
    )
    assert {key: pytest.approx(metric.value) for key, metric in metrics.items()} == {
        "kv_tokens": 20000,
        "w/decode_tok_s": 50,  # 10 tokens in 0.2 s: the median of 50, 50 and 25
        "w/output_tok_s": 33 / 2.0,
        "w/ttft_ms": 100,
        "w/itl_ms": 20,
    }
    assert all(metric.usable for metric in metrics.values())
    assert {metric.kind for metric in metrics.values()} == {"exact", "timing"}
    assert metrics["w/decode_tok_s"].samples == 3


def test_speculative_figures() -> None:
    one = request(tokens=13, per_step=4, step=0.08, passes=3)  # 1 token, then 3 passes of 4
    two = request(tokens=13, per_step=3, step=0.08, passes=4)
    metrics = by_key(
        measure(
            [result([one, one, two])],
            {"max_total_num_tokens": 1},
            {"w": passes(PREFILL, VERIFY)},
            speculative=True,
            tensor_parallel=True,
        )
    )
    assert metrics["w/accept_length"].value == pytest.approx(39 / 10)
    assert metrics["w/accept_length"].kind == "counted"
    assert metrics["w/step_ms"].value == pytest.approx(80)
    assert metrics["w/itl_ms"].value == pytest.approx(20)  # an 80 ms gap that brought 4 tokens is 20 ms for each
    assert metrics["w/decode_tok_s"].value == pytest.approx(50)
    assert (metrics["w/verify_ms"].value, metrics["w/verify_ms"].samples) == (3.5, 3)
    assert (metrics["w/all_reduces_per_pass"].value, metrics["w/all_reduces_per_pass"].kind) == (12, "exact")
    assert (metrics["w/bytes_per_all_reduce"].value, metrics["w/bytes_per_all_reduce"].better) == (
        2048,
        "same",
    )


def test_a_first_chunk_of_many_tokens_is_not_decoding() -> None:
    times = (0.1,) * 5 + (0.2,) * 5
    got = RequestResult("p", 1, 10, 0, 0.0, times, "length")
    assert got.decode_tok_s == pytest.approx(50)
    assert got.token_gaps_s() == pytest.approx([0.02] * 5)


@pytest.mark.parametrize(("count", "present"), [(P99_REQUESTS - 1, False), (P99_REQUESTS, True)])
def test_p99_needs_its_requests(count: int, present: bool) -> None:
    requests = [request(sent=-index / 1000) for index in range(count)]
    metrics = by_key(workload_metrics(result(requests), speculative=False))
    assert ("w/ttft_p99_ms" in metrics) is present
    assert ("w/itl_p99_ms" in metrics) is present
    if present:
        assert metrics["w/ttft_p99_ms"].value == pytest.approx(100 + 0.99 * (count - 1))


def test_counts_are_taken_from_single_requests_only() -> None:
    many = result([request()], name="many", concurrency=8)
    metrics = by_key(measure([many], {}, {"many": passes(PREFILL, DECODE)}, speculative=False, tensor_parallel=True))
    assert "many/all_reduces_per_pass" not in metrics
    assert "many/verify_ms" not in metrics


def test_speculation_that_reports_nothing_is_nan() -> None:
    metrics = by_key(
        measure(
            [result([request()])],
            {"max_total_num_tokens": 5},
            {"w": passes(PREFILL, DECODE)},
            speculative=True,
            tensor_parallel=True,
        )
    )
    for name in ("accept_length", "step_ms", "verify_ms", "all_reduces_per_pass", "bytes_per_all_reduce"):
        assert math.isnan(metrics[f"w/{name}"].value), name
        assert not metrics[f"w/{name}"].usable
    assert metrics["w/decode_tok_s"].usable


def test_without_speculation_the_decode_passes_are_counted() -> None:
    got = {"w": passes(PREFILL, DECODE)}
    metrics = by_key(measure([result([request()])], {}, got, speculative=False, tensor_parallel=True))
    assert metrics["w/all_reduces_per_pass"].value == 12
    assert metrics["w/bytes_per_all_reduce"].value == 512


def test_one_pass_that_differs_shows() -> None:
    got = {"w": passes(kind("decode", 1, {12: 39, 13: 1}, 512))}
    metrics = by_key(measure([result([request()])], {}, got, speculative=False, tensor_parallel=True))
    assert metrics["w/all_reduces_per_pass"].value == pytest.approx(12.025)


def test_missing_counters_are_nan() -> None:
    """Speculation and tensor parallelism are on, the counters wrote nothing at all."""
    metrics = by_key(measure([result([request(passes=5)])], {}, None, speculative=True, tensor_parallel=True))
    for name in ("verify_ms", "all_reduces_per_pass", "bytes_per_all_reduce"):
        assert math.isnan(metrics[f"w/{name}"].value), name


def test_one_request_without_verify_passes_is_nan() -> None:
    assert math.isnan(accept_length([request(passes=4), request()]))


def test_unexpected_speculation_is_reported() -> None:
    assert "w/accept_length" in by_key(workload_metrics(result([request(passes=4)]), speculative=False))


@pytest.mark.parametrize(
    "info", [{}, {"max_total_num_tokens": 0}, {"max_total_num_tokens": None}, {"max_total_num_tokens": True}]
)
def test_no_kv_capacity_is_nan(info: dict[str, object]) -> None:
    metrics = by_key(measure([], info, speculative=False, tensor_parallel=False))
    assert math.isnan(metrics["kv_tokens"].value)


def test_a_kv_capacity_that_follows_free_memory_is_not_exact() -> None:
    """Two starts on one GPU leave different memory: a token more or less is no verdict."""
    for info, kind in (({"max_total_tokens": 20000}, "exact"), ({"max_total_tokens": None}, "counted")):
        found = by_key(measure([], {"max_total_num_tokens": 20000} | info, speculative=False, tensor_parallel=False))
        assert (found["kv_tokens"].kind, found["kv_tokens"].value) == (kind, 20000)


def test_a_request_without_a_decode_phase_is_nan() -> None:
    at_once = replace(request(), token_times_s=(0.1,) * 11)
    metrics = by_key(workload_metrics(result([request(), at_once, request()]), speculative=False))
    assert math.isnan(metrics["w/decode_tok_s"].value)


def test_no_requests_and_no_time_are_nan() -> None:
    metrics = by_key(workload_metrics(result([], wall=0.0), speculative=False))
    assert all(math.isnan(metric.value) for metric in metrics.values())


def test_a_result_that_is_not_whole_is_refused() -> None:
    data = result([request()]).to_json()
    assert WorkloadResult.from_json(data).requests[0].completion_tokens == 11
    del data["wall_s"]
    with pytest.raises(RecordError, match=r"some\.json: workload result is not whole: KeyError"):
        WorkloadResult.from_json(data, "some.json")
