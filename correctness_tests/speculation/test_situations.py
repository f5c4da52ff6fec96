"""Situations that a short request on a busy server never meets: the far end of the context, a server that has stood
still, a request that was thrown out and came back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acceptance import acceptance
from long_requests import long_answers, long_prompts
from processed_scores import ProcessedChecker
from request_matrix import Probe
from situations import run_idle, run_retracted
from speculative_pair import Pair
from trial import run_group

from fixtures.errors import MeasurementFailed
from fixtures.serving.server import Server
from fixtures.serving.workloads.workload import PROMPTS, read_prompts

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

IDLE_S = 60.0


def test_every_length_of_the_context(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], probes_of: Callable[[Server], list[Probe]]
) -> None:
    server = serve(pair.speculative)
    end = int(server.info["max_req_input_len"])
    texts = [checker.vocabulary.encode(text.text) for text in read_prompts(PROMPTS / "long_openings.jsonl")]
    for group in (long_answers(probes_of(server), end), long_prompts(texts, end)):
        trial = run_group(server.url, group, checker)
        reached = max(len(a.prompt) + len(b.tokens) for a, b in zip(group.asks, trial.answers, strict=True))
        passes = max(answer.verify_passes for answer in trial.answers)
        print(f"{group.name}: up to {reached} of {end} tokens and {passes} passes; {acceptance(trial.answers)}")
        assert not trial.checked.findings, trial.checked.report
    assert reached >= end - 16


def test_the_first_passes_after_an_idle_minute(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], probes_of: Callable[[Server], list[Probe]]
) -> None:
    """Time that the server has stood still already, while the judge was tested, counts."""
    server = serve(pair.speculative)
    trial, seconds = run_idle(server, probes_of(serve(pair.reference)), checker, IDLE_S)
    print(f"asked after {seconds:.0f} s without a pass")
    assert seconds >= IDLE_S
    assert not trial.checked.findings, trial.checked.report


def test_requests_that_were_retracted_and_came_back(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], probes_of: Callable[[Server], list[Probe]]
) -> None:
    server = serve(pair.speculative)
    try:
        trial = run_retracted(server.url, probes_of(server), checker)
    except MeasurementFailed as error:
        if error.cause == "refused":
            pytest.skip(str(error))
        raise
    counts = [answer.retractions for answer in trial.answers]
    print(f"retractions of each request: {counts}; {acceptance(trial.answers)}")
    assert not trial.checked.findings, trial.checked.report
