"""Prompts longer than the prefill chunk, answers that the model itself ends inside an accepted run, and more of them at
once than the KV cache holds."""

from __future__ import annotations

from typing import Any

import pytest
from acceptance import judge_acceptance, judge_cache_hit
from situations import run_full_cache
from speculative_pair import Pair, draft_tokens
from trial import build, probe, run_group

from fixtures.serving.workloads.workload import PROMPTS, read_prompts
from fixtures.speculation.answers import Ask
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

CROWD = 40
LEAST_ACCEPT_LENGTH = 1.2
"""Lower than elsewhere: the tiny draft reads long prompts less well."""


def test_prompts_beyond_the_prefill_chunk(tight: Any) -> None:
    """The draft's cache is filled in pieces too."""
    server, checker = tight.server, tight.checker
    texts = [prompt.text for prompt in read_prompts(PROMPTS / "long_openings.jsonl")]
    prompts = [checker.vocabulary.encode(text) for text in texts]
    assert all(len(prompt) > server.info["chunked_prefill_size"] for prompt in prompts)
    asks = [
        Ask(f"long-prompt-{number}", prompt, {"max_new_tokens": 32, "ignore_eos": True}, top_logprobs=5)
        for number, prompt in enumerate(prompts)
    ]
    first = ask_all(server.url, asks, together=4)
    second = ask_all(server.url, asks, together=4)
    checked = checker.check(asks, first) + checker.check(asks, second)
    found = [
        *checked.findings,
        *judge_acceptance("long prompts", first, LEAST_ACCEPT_LENGTH),
        *judge_cache_hit("long prompts", first, second),
    ]
    assert not found, "\n".join([*map(str, found), checked.report])


def test_an_end_of_sequence_inside_an_accepted_run(tight: Any, pair: Pair, prompts: list[tuple[int, ...]]) -> None:
    """At each offset but the last, where no draft comes after it; far from the cap, at it, and beyond it."""
    server, checker, width = tight.server, tight.checker, draft_tokens(pair.speculative)
    groups = build("end_of_sequence", probe(server.url, prompts, width), checker)
    inside = [group for group in groups if group.name == "eos_inside_a_run"]
    offsets = {ask.name.split("-")[2] for group in inside for ask in group.asks}
    assert offsets == {str(offset) for offset in range(width - 1)}, f"inside runs only at {sorted(offsets)}"
    trials = [run_group(server.url, group, checker) for group in groups]
    found = [finding for trial in trials for finding in trial.checked.findings]
    assert not found, "\n".join(map(str, found))
    ended = [answer.finish.kind for trial in trials[-1:] for answer in trial.answers if answer.finish is not None]
    assert {"stop", "length"} == set(ended)


def test_requests_that_a_full_cache_throws_out(tight: Any, prompts: list[tuple[int, ...]]) -> None:
    trial = run_full_cache(tight.server.url, prompts[:CROWD], tight.checker)
    print(f"retractions of each request: {[answer.retractions for answer in trial.answers]}")
    assert any("KV cache pool is full. Retract requests." in line for line in tight.server.log_lines())
    assert not trial.checked.findings, trial.checked.report
