"""Acceptance against the same server's own earlier answers, at any batch size and length."""

from __future__ import annotations

import random

from acceptance import judge_history
from long_requests import again
from request_matrix import Probe

from fixtures.speculation.answers import Answer, Ask
from fixtures.speculation.replay import Symptom

TOKENS = 40


def probes(seed: int, prompts: int = 16) -> list[Probe]:
    return [Probe((number,), tuple(range(TOKENS)), (), 4, tuple(cut(random.Random(seed + number)))) for number in
            range(prompts)]


def cut(draw: random.Random, dead: float = 0.0) -> list[int]:
    """Runs of an answer: some 2.75 tokens a pass; a share of passes has no draft accepted."""
    sizes = [1]
    while (left := TOKENS - sum(sizes)) > 0:
        sizes.append(min(left, 1 if draw.random() < dead else draw.choice([1, 2, 4, 4])))
    return sizes


def answers(
    given: list[Probe], asks: list[Ask], shift: dict[int, int] | None = None, dead: float = 0.0
) -> list[Answer]:
    """What the same server says again; shift: passes more at some asks, as ties make them."""
    made = []
    for number, ask in enumerate(asks):
        probe = next(each for each in given if each.prompt == ask.prompt)
        passes = probe.passes_to(ask.cap)
        if dead:
            passes = len(cut(random.Random(number), dead)) - 1
        made.append(Answer(tuple(range(ask.cap)), verify_passes=passes + (shift or {}).get(number, 0)))
    return made


def test_passes_to_a_length_are_those_in_which_it_was_reached() -> None:
    probe = Probe((1,), tuple(range(8)), (), 4, (1, 4, 1, 2))
    assert [probe.passes_to(count) for count in range(1, 9)] == [0, 1, 1, 1, 1, 2, 3, 3]


def test_the_same_again_is_no_alarm_and_neither_are_ties() -> None:
    for seed in range(30):
        draw, given = random.Random(seed), probes(seed)
        assert not judge_history("same", again(given), answers(given, again(given)), given)
        ties = {number: draw.choice([-1, 0, 0, 0, 1]) for number in range(len(given))}
        assert not judge_history("ties", again(given), answers(given, again(given), ties), given)


def test_a_tie_of_one_prompt_that_many_requests_share_is_no_alarm() -> None:
    given = probes(1)
    asks = [Ask(f"batch-{n}", given[n % 16].prompt, {"max_new_tokens": 40, "ignore_eos": True}) for n in range(480)]
    shared = {number: 6 for number in range(480) if number % 16 in (0, 1, 2)}
    assert not judge_history("batch of 480", asks, answers(given, asks, shared), given)


def test_half_of_the_drafts_dead_shows_at_once_however_far_above_any_floor() -> None:
    for seed in range(20):
        given = probes(seed)
        found = judge_history("after", again(given), answers(given, again(given), dead=0.5), given)
        assert [each.symptom for each in found] == [Symptom.ACCEPT_LENGTH]
    assert "verify passes for what took" in found[0].line


def test_what_is_processed_sampled_or_of_another_prompt_is_left_out() -> None:
    given = probes(2)
    kinds = ({"logit_bias": {"3": 9.0}}, {"temperature": 0.8}, {"frequency_penalty": 1.0})
    for kind in kinds:
        asks = [Ask("other", probe.prompt, {"max_new_tokens": 40, **kind}) for probe in given]
        assert not judge_history("other", asks, answers(given, asks, dict.fromkeys(range(16), 20)), given)
