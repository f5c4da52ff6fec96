"""Prompts longer than the prefill chunk: the draft's cache is filled in pieces too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fixtures.serving.running import Server
from fixtures.serving.workloads.prompts import PROMPTS, read_prompts
from fixtures.speculation.acceptance import judge_acceptance, judge_cache_hit
from fixtures.speculation.answers import Ask
from fixtures.speculation.check import Checker
from fixtures.speculation.serve import ask_all
from fixtures.speculation.served import Pair

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

CHUNK = 256
LEAST_ACCEPT_LENGTH = 1.2
"""Lower than elsewhere: the tiny draft reads long prompts less well."""


def test_prompts_beyond_the_prefill_chunk(pair: Pair, checker: Checker, serve: Callable[..., Server]) -> None:
    options = {**pair.speculative.options, "chunked_prefill_size": CHUNK}
    server = serve(replace(pair.speculative, name="eagle3_small_chunks", options=options))
    texts = [prompt.text for prompt in read_prompts(PROMPTS / "long_openings.jsonl")]
    prompts = [checker.vocabulary.encode(text) for text in texts]
    assert all(len(prompt) > CHUNK for prompt in prompts)
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
