"""Two faults that SGLang has had, as live requests: neither may come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acceptance import judge_cache_hit
from processed_scores import ProcessedChecker
from speculative_pair import Pair, draft_tokens
from trial import flush_cache, probe

from fixtures.serving.server import Server
from fixtures.speculation.answers import Ask
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]


def test_a_stop_inside_an_accepted_run_that_crosses_the_cap(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    """The stop ends the answer when it lies within max_new_tokens; the cap does when the stop lies beyond."""
    server = serve(pair.speculative)
    asks = []
    for number, found in enumerate(probe(server.url, prompts[:12], draft_tokens(pair.speculative))):
        for start in found.starts:
            stop = start + 1
            if found.first_here(stop):
                for cap in (stop, stop + 1, stop + 2):
                    sampling = {"max_new_tokens": cap, "stop_token_ids": [found.tokens[stop]]}
                    asks.append(Ask(f"stop-at-{stop}-cap-{cap}-prompt-{number}", found.prompt, sampling))
                break
    assert len(asks) >= 6, "too few accepted runs to stop in"
    answers = ask_all(server.url, asks, together=8)
    checked = checker.check(asks, answers)
    assert not checked.findings, checked.report
    kinds = {answer.finish.kind for answer in answers if answer.finish is not None}
    assert kinds == {"stop", "length"}


def test_a_repeated_prompt_with_the_prefix_cache_on(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    """The second request reads what the first left in the cache, the draft's part included."""
    server = serve(pair.speculative)
    flush_cache(server.url)
    asks = [
        Ask(f"first-{number}", prompt, {"max_new_tokens": 40, "ignore_eos": True}, top_logprobs=0)
        for number, prompt in enumerate(prompts[16:28])
    ]
    first = ask_all(server.url, asks, together=4)
    second = ask_all(server.url, asks, together=4)
    # Prompts may share their first words; the second time nearly all of a prompt is there.
    assert all(after.cached_tokens > before.cached_tokens for before, after in zip(first, second, strict=True))
    checked = checker.check(asks, first) + checker.check(asks, second)
    found = [*checked.findings, *judge_cache_hit("repeated", first, second)]
    assert not found, "\n".join(map(str, found))
