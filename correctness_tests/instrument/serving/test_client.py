"""The load generator against a scripted server: closed loop, timing, its own cost, and each way a server
fails."""

from __future__ import annotations

import asyncio
import gc
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from scripted_server import DONE, HANG_UP, RESET, ScriptedServer, answer, events, normal, scripted_server

from fixtures.errors import MeasurementFailed
from fixtures.records.measure import workload_metrics
from fixtures.serving.client import LAG_FLOOR_MS, Progress, bottleneck, client_cost, measure_workload
from fixtures.serving.client_request import flush_cache, open_session
from fixtures.serving.client_results import WorkloadResult
from fixtures.serving.workloads import Prompt, Workload
from fixtures.speculation.answers import Ask
from fixtures.speculation.serve import ask_all

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


def workload(**changes: Any) -> Workload:
    base = Workload(
        name="w",
        size="cpu",
        description="test",
        concurrency=1,
        requests=2,
        max_new_tokens=8,
        warm_up_requests=1,
        prompts=tuple(Prompt(f"p{index}", f"text {index}") for index in range(40)),
        stall_s=20.0,
        deadline_s=40.0,
    )
    return replace(base, **changes)


def test_a_closed_loop_keeps_its_concurrency_and_its_order(server: ScriptedServer) -> None:
    server.generate = normal(8, pause_s=0.005)
    result = measure_workload(server.url, workload(concurrency=4, requests=13, warm_up_requests=3))
    assert server.most_in_flight == 4
    assert [request.prompt_id for request in result.requests] == [f"p{index}" for index in range(13)]
    assert [body["text"] for body in server.bodies[:3]] == ["text 13", "text 14", "text 15"]  # the warm-up
    assert len(server.bodies) == 16
    assert server.order == ["generate"] * 3 + ["flush"] + ["generate"] * 13
    sampling = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 8}
    assert all(body["sampling_params"] == sampling and body["stream"] for body in server.bodies)
    assert result.completion_tokens == 13 * 8
    assert WorkloadResult.from_json(result.to_json()).to_json() == result.to_json()


def test_a_shared_cache_is_flushed_before_the_warm_up(server: ScriptedServer) -> None:
    server.generate = normal(8, cached=18)
    result = measure_workload(server.url, workload(cache="shared", cached_share=(0.5, 1.0)))
    assert server.order == ["flush"] + ["generate"] * 3
    assert [body["text"] for body in server.bodies] == ["text 2", "text 0", "text 1"]
    assert result.cached_share == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("cached", "allowed", "words"),
    [
        (18, (0.0, 0.25), "2 of 2 requests are not cold: .* 18 of 20 tokens .* 90% where 0% to 25% .* cache flushed"),
        (0, (0.5, 1.0), "0 of 20 .* 0% .* radix cache off"),
    ],
)
def test_prefix_hits_outside_the_stated_range_fail(
    server: ScriptedServer, cached: int, allowed: tuple[float, float], words: str
) -> None:
    server.generate = normal(8, cached=cached)
    with pytest.raises(MeasurementFailed, match=words) as caught:
        measure_workload(server.url, workload(cached_share=allowed))
    assert caught.value.cause == "cache"


@pytest.mark.parametrize(
    ("cache", "allowed", "one", "others"), [("cold", (0.0, 0.25), 20, 0), ("shared", (0.5, 1.0), 0, 20)]
)
def test_one_request_in_another_cache_state_fails_a_workload_whose_mean_is_right(
    server: ScriptedServer, cache: Any, allowed: tuple[float, float], one: int, others: int
) -> None:
    """Its TTFT is another thing than what was asked for."""

    async def one_differs(body: dict[str, Any]) -> AsyncIterator[Any]:
        for piece in [*events(8, cached=one if body["text"] == "text 3" else others), DONE]:
            yield piece

    server.generate = one_differs
    said = f"w: 1 of 12 requests are not {cache}: of prompt p3 {one} of 20"
    with pytest.raises(MeasurementFailed, match=said) as caught:
        measure_workload(server.url, workload(requests=12, cache=cache, cached_share=allowed))
    assert caught.value.cause == "cache"


def test_a_request_that_was_retracted_finds_its_own_prompt(server: ScriptedServer) -> None:
    server.generate = normal(8, cached=20, spec={"num_retractions": 1})
    assert measure_workload(server.url, workload(cached_share=(0.0, 0.25))).requests[0].retractions == 1


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"cached_tokens": None}, "cached_tokens None of prompt_tokens 20"),
        ({"cached_tokens": 21}, "cached_tokens 21 of prompt_tokens 20"),
        ({"cached_tokens": -1}, "cached_tokens -1"),
        ({"cached_tokens": "0"}, "cached_tokens '0'"),
        ({"prompt_tokens": 0}, "of prompt_tokens 0"),
    ],
)
def test_a_cache_state_that_is_not_told_is_not_believed(server: ScriptedServer, reported: Any, said: str) -> None:
    """Read as 0, it would pass for a cold cache."""
    server.generate = normal(8, spec=reported)
    with pytest.raises(MeasurementFailed, match=re.escape(said)) as caught:
        measure_workload(server.url, workload(cached_share=(0.0, 0.25)))
    assert caught.value.cause == "cache"


@pytest.mark.parametrize("per_chunk", [1, 4])
@pytest.mark.parametrize("cumulative", [True, False])
def test_the_figures_are_the_servers_pace(server: ScriptedServer, per_chunk: int, cumulative: bool) -> None:
    """The server notes when it wrote each chunk: the client's figures agree with that, in tokens, not in
    chunks."""
    spec = {"spec_verify_ct": 6, "spec_num_correct_drafts": 18} if per_chunk == 4 else None
    server.generate = normal(24, pause_s=0.03, per_chunk=per_chunk, cumulative=cumulative, spec=spec)
    result = measure_workload(server.url, workload(requests=3, max_new_tokens=24))
    rates, gaps = [], []
    for sent in server.sent_s[1:]:  # the first is the warm-up, the last moment of each is [DONE]
        rates.append((24 - per_chunk) / (sent[-2] - sent[0]))
        gaps += [(after - before) / per_chunk for before, after in pairwise(sent[:-1])]
    metrics = {metric.name: metric.value for metric in workload_metrics(result, speculative=per_chunk == 4)}
    assert metrics["decode_tok_s"] == pytest.approx(statistics.median(rates), rel=0.2)
    assert metrics["itl_ms"] == pytest.approx(1e3 * statistics.median(gaps), rel=0.2)
    assert metrics["output_tok_s"] < metrics["decode_tok_s"] * 1.2
    if per_chunk == 4:
        assert metrics["accept_length"] == 4.0
        # six verify passes lie between the first and the last arrival, of which five gaps are seen here
        assert metrics["step_ms"] == pytest.approx(5 / 6 * 4 * metrics["itl_ms"], rel=0.2)


def test_time_to_first_token(server: ScriptedServer) -> None:
    async def waits_first(_: dict[str, Any]) -> AsyncIterator[Any]:
        await asyncio.sleep(0.5)
        for piece in [*events(8), DONE]:
            yield piece

    server.generate = waits_first
    result = measure_workload(server.url, workload(requests=1))
    assert server.sent_s[1][0] - server.received_s[1] <= result.requests[0].ttft_s < 1.5


def test_warm_up_is_excluded(server: ScriptedServer) -> None:
    calls = iter([0.3, 0.0, 0.0])

    async def slow_first(_: dict[str, Any]) -> AsyncIterator[Any]:
        await asyncio.sleep(next(calls))
        for piece in [*events(8), DONE]:
            yield piece

    server.generate = slow_first
    result = measure_workload(server.url, workload())
    assert result.warm_up_s > 0.3
    assert len(result.requests) == 2
    assert result.wall_s < result.warm_up_s


# --- failures
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "cause", "words"),
    [
        (answer(events(8)[:4]), "truncated", "after 4 tokens without a finish_reason"),
        (answer([*events(8)[:4], HANG_UP]), "connection", "the connection broke after 4 of 8 tokens"),
        (
            answer([*events(8)[:4], RESET], pause_s=0.01),
            "connection",
            "the connection broke after 4 of 8 tokens",
        ),
        (answer([HANG_UP]), "connection", "the connection broke after 0 of 8 tokens"),
        (answer([*events(5), DONE]), "too_few_tokens", "5 of 8 tokens"),
        (answer([*events(8, claim=6), DONE]), "wrong_count", "8 token ids arrived, the server counts 6"),
    ],
    ids=["truncated", "hangs up", "reset", "dies at once", "too few", "wrong count"],
)
def test_a_failing_stream_is_no_measurement(server: ScriptedServer, script: Any, cause: str, words: str) -> None:
    server.generate = script
    with pytest.raises(MeasurementFailed, match=words) as caught:
        measure_workload(server.url, workload(concurrency=2, requests=4))
    assert caught.value.cause == cause
    assert "\n" not in str(caught.value)


def test_a_failure_in_mid_run_cancels_the_others(server: ScriptedServer) -> None:
    async def third_dies(body: dict[str, Any]) -> AsyncIterator[Any]:
        if body["text"] == "text 2":
            yield events(8)[0]
            yield RESET
        for piece in events(8)[:4]:
            yield piece
        await asyncio.sleep(30 if len(server.bodies) > 1 else 0)
        for piece in [*events(8)[4:], DONE]:
            yield piece

    server.generate = third_dies
    began = time.perf_counter()
    with pytest.raises(MeasurementFailed, match="w: prompt p2: the connection broke"):
        measure_workload(server.url, workload(concurrency=3, requests=9))
    assert time.perf_counter() - began < 15


@pytest.mark.parametrize("status", [500, 503, 404])
def test_an_error_status_is_no_measurement(server: ScriptedServer, status: int) -> None:
    server.status = status
    with pytest.raises(MeasurementFailed, match=f"the server answered {status}: boom") as caught:
        measure_workload(server.url, workload())
    assert caught.value.cause == "http_error"


def test_a_refusal_is_the_same_to_both_who_ask(server: ScriptedServer) -> None:
    """A workload cannot be measured with it; to a check of outputs it is an answer."""
    server.status = 400
    with pytest.raises(MeasurementFailed, match="w: prompt p2: the server refused the request: boom") as caught:
        measure_workload(server.url, workload())
    assert caught.value.cause == "refused"
    assert [answer.refusal for answer in ask_all(server.url, [Ask("a", (1, 2))] * 2, together=2)] == ["boom"] * 2


@pytest.mark.parametrize("cumulative", [True, False])
def test_a_stream_is_read_alike_by_both_who_ask(server: ScriptedServer, cumulative: bool) -> None:
    server.generate = normal(24, per_chunk=4, cumulative=cumulative, spec={"spec_verify_ct": 6})
    (measured,) = measure_workload(server.url, workload(requests=1, max_new_tokens=24)).requests
    (answer,) = ask_all(server.url, [Ask("a", (1, 2), stream=True)], together=1)
    assert answer.tokens == measured.output_ids
    assert (answer.verify_passes, answer.cached_tokens) == (measured.verify_passes, measured.cached_tokens)
    assert sum(answer.runs) == measured.completion_tokens


@pytest.mark.parametrize(
    ("script", "cause"), [(answer([b"data: {not json\n\n"]), "bad_stream"), (answer([RESET]), "connection")]
)
def test_a_broken_stream_is_the_same_to_both_who_ask(server: ScriptedServer, script: Any, cause: str) -> None:
    server.generate = script
    for ask in (
        lambda: measure_workload(server.url, workload()),
        lambda: ask_all(server.url, [Ask("a", (1, 2), stream=True)], together=1),
    ):
        with pytest.raises(MeasurementFailed) as caught:
            ask()
        assert caught.value.cause == cause


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "events without tokens"])
def test_a_stall_is_noticed(server: ScriptedServer, chatty: bool) -> None:
    async def stalls(_: dict[str, Any]) -> AsyncIterator[Any]:
        yield events(8)[0]
        yield events(8)[1]
        while True:  # repeats a cumulative chunk, which brings no token
            await asyncio.sleep(0.02)
            if chatty:
                yield events(8)[1]

    server.generate = stalls
    with pytest.raises(MeasurementFailed, match=r"no token for 0\.4 s, after 2 of 8") as caught:
        measure_workload(server.url, workload(stall_s=0.4))
    assert caught.value.cause == "stalled"


def test_a_slow_but_steady_answer_is_no_stall(server: ScriptedServer) -> None:
    server.generate = normal(8, pause_s=0.15)
    result = measure_workload(server.url, workload(stall_s=0.9, requests=1, warm_up_requests=0))
    assert result.wall_s > 0.9


def test_the_deadline_of_the_workload(server: ScriptedServer) -> None:
    server.generate = normal(8, pause_s=0.2)
    with pytest.raises(MeasurementFailed, match=r"not done within its deadline of 0\.5 s") as caught:
        measure_workload(server.url, workload(deadline_s=0.5))
    assert caught.value.cause == "deadline"


def test_nobody_listens() -> None:
    with scripted_server() as server:
        url = server.url
    with pytest.raises(MeasurementFailed, match=f"no connection to {url}") as caught:
        measure_workload(url, workload())
    assert caught.value.cause == "connection"


def test_a_busy_cache_is_flushed_again(server: ScriptedServer) -> None:
    server.flush = lambda call: 400 if call < 4 else 200
    measure_workload(server.url, workload())
    assert server.flushes == 4


@pytest.mark.parametrize("status", [400, 500])
def test_a_cache_that_stays_busy_is_no_measurement(server: ScriptedServer, status: int) -> None:
    server.flush = lambda call: status

    async def flush() -> None:
        async with open_session(1) as session:
            await flush_cache(session, server.url, bound_s=0.3)

    with pytest.raises(MeasurementFailed, match=f"/flush_cache answered {status}"):
        asyncio.run(flush())
    assert server.flushes > 1 or status == 500


# --- the client's own cost
# --------------------------------------------------------------------------------------


def test_a_slow_client_says_so(server: ScriptedServer) -> None:
    """Planted: a progress callback that blocks the event loop for longer than the server takes for a
    token."""
    server.generate = normal(16, pause_s=0.01)
    quick = measure_workload(server.url, workload(max_new_tokens=16))
    slow = measure_workload(server.url, workload(max_new_tokens=16), lambda progress: time.sleep(0.05))
    assert slow.bottleneck
    assert "ms late on average" in slow.bottleneck
    assert slow.client.lag_mean_ms > quick.client.lag_mean_ms
    assert slow.to_json()["client_bottleneck"] is True


def test_a_busy_client_says_so(server: ScriptedServer) -> None:
    server.generate = normal(16, pause_s=0.02)
    calls = 0

    def burn(_: Progress) -> None:
        nonlocal calls
        calls += 1
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass

    result = measure_workload(server.url, workload(max_new_tokens=16), burn)
    assert result.bottleneck
    assert result.client.cpu_share * result.wall_s > 0.01 * calls > 0


@pytest.mark.parametrize(
    ("lag_ms", "cpu_s", "step_s", "flagged"),
    [
        (0.1, 0.1, 0.006, False),
        (LAG_FLOOR_MS * 1.1, 0.1, 0.006, True),
        (LAG_FLOOR_MS * 1.1, 0.1, 0.1, False),
        (11.0, 0.1, 0.1, True),
        (0.1, 5.1, 0.006, True),
        (0.1, 4.9, 0.006, False),
    ],
)
def test_the_thresholds(lag_ms: float, cpu_s: float, step_s: float, flagged: bool) -> None:
    cost = client_cost([lag_ms / 1e3] * 100, cpu_s=cpu_s, wall_s=10.0)
    assert bool(bottleneck(cost, step_s)) is flagged


def test_progress_counts_tokens_and_requests(server: ScriptedServer) -> None:
    seen: list[tuple[str, int, int]] = []
    measure_workload(server.url, workload(), lambda p: seen.append((p.phase, p.requests, p.tokens)))
    assert seen[-1] == ("measuring", 1, 16)
    assert [tokens for _, _, tokens in seen] == sorted(tokens for _, _, tokens in seen)


def test_the_garbage_collector_is_on_again(server: ScriptedServer) -> None:
    server.status = 500
    with pytest.raises(MeasurementFailed):
        measure_workload(server.url, workload(warm_up_requests=0))
    assert gc.isenabled()


def test_a_looping_answer_is_named(server: ScriptedServer) -> None:
    async def loops_on_p1(body: dict[str, Any]) -> AsyncIterator[Any]:
        ids = [5, 6, 7, 8] * 16 if body["text"] == "text 1" else None
        for piece in [*events(64, ids=ids), DONE]:
            yield piece

    server.generate = loops_on_p1
    result = measure_workload(server.url, workload(max_new_tokens=64, requests=4))
    assert result.degenerate == ("p1",)
