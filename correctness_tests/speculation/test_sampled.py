"""Above temperature 0 under speculation: from the model's distribution, or refused in so many words?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.serving.running import Server
from fixtures.speculation.answers import Ask
from fixtures.speculation.check import DENSE, Checker
from fixtures.speculation.reference import Passage
from fixtures.speculation.sampling import SAMPLES, judge_marginals, marginals, probabilities
from fixtures.speculation.serve import ask_all
from fixtures.speculation.served import Pair, draft_tokens

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

SAMPLING = {"temperature": 0.8, "top_p": 0.95}


def test_sampling_is_from_the_models_distribution_or_refused(
    pair: Pair, checker: Checker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    depth = draft_tokens(pair.speculative)
    ask = Ask("sampled", prompts[0], {**SAMPLING, "max_new_tokens": depth, "ignore_eos": True})
    first = ask_all(server.url, [ask], together=1)[0]
    if first.refusal is not None:
        assert "temperature" in first.refusal, f"refused without naming the temperature: {first.refusal}"
        greedy = Ask("greedy", prompts[0], {"max_new_tokens": depth, "ignore_eos": True})
        assert ask_all(server.url, [greedy], together=1)[0].refusal is None
        plain = ask_all(checker.reference.url, [ask], together=1)[0]
        assert plain.refusal is None, "the plain server refuses it too: not speculation's doing"
        print(f"\nrefused: {first.refusal}")
        return
    assert agrees(server.url, ask, checker, depth, SAMPLES)


def test_the_check_knows_sampling_when_it_sees_it(checker: Checker, prompts: list[tuple[int, ...]]) -> None:
    """The plain server samples: its own draws agree with its own probabilities, and not with another temperature's."""
    ask = Ask("sampled", prompts[0], {**SAMPLING, "max_new_tokens": 2, "ignore_eos": True})
    answers = ask_all(checker.reference.url, [ask] * 400, together=16)
    outputs = [answer.tokens for answer in answers]
    assert not judge_marginals("plain", marginals(outputs, after_each(ask, outputs, checker, SAMPLING), 2))
    hotter = after_each(ask, outputs, checker, {**SAMPLING, "temperature": 1.6})
    assert judge_marginals("plain", marginals(outputs, hotter, 2))


def agrees(url: str, ask: Ask, checker: Checker, depth: int, samples: int) -> bool:
    outputs = [answer.tokens for answer in ask_all(url, [ask] * samples, together=32)]
    found = judge_marginals("sampled", marginals(outputs, after_each(ask, outputs, checker, SAMPLING), depth))
    print(*found, sep="\n")
    return not found


def after_each(
    ask: Ask, outputs: list[tuple[int, ...]], checker: Checker, sampling: dict[str, float]
) -> Callable[[tuple[int, ...]], dict[int, float]]:
    """The plain server's probabilities after every prefix that occurs: one replay of each distinct output."""
    distinct = sorted(set(outputs))
    top = min(DENSE, checker.vocabulary.size)
    replays = checker.reference.replay([Passage(ask.prompt, output, top) for output in distinct])
    known = {
        output[:position]: rows[position]
        for output, rows in zip(distinct, replays, strict=True)
        for position in range(len(output))
    }
    return lambda prefix: dict(probabilities(known[prefix], **sampling))
