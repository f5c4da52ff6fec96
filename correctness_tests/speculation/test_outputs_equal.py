"""Are EAGLE-3's outputs those of the plain server, up to ties, and are its drafts really accepted?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acceptance import acceptance, judge_acceptance
from alternatives import exact_share
from processed_scores import ProcessedChecker
from speculative_pair import Pair

from fixtures.serving.server import Server
from fixtures.speculation.answers import Ask
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live, pytest.mark.correctness, pytest.mark.timeout(3600)
]

FLOORS = {"cpu": 2.5}
"""Least accept length by box; another box only has to accept drafts at all until its baseline says more."""


def test_outputs_equal_the_plain_servers_up_to_ties(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    asks = [
        Ask(f"prompt-{number}", prompt, {"max_new_tokens": 64, "ignore_eos": True}, top_logprobs=5)
        for number, prompt in enumerate(prompts[:32])
    ]
    server = serve(pair.speculative)
    answers = ask_all(server.url, asks, together=8)
    plain = ask_all(checker.reference.url, asks, together=8)
    checked = checker.check(asks, answers)
    print(f"\n{checker.noise}")
    print(f"worst regret {checked.worst:.4f}, {checked.regrets} regrets in {checked.positions} positions")
    print(f"exact match with the plain server's own run: {exact_share(answers, plain):.0%} of {len(asks)}")
    print(acceptance(answers))
    found = [*checked.findings, *judge_acceptance("all prompts", answers, FLOORS.get(pair.speculative.box, 1.05))]
    assert not found, checked.report + "\n" + "\n".join(map(str, found))
