"""Above temperature 0 under speculation: from the model's distribution, or refused in so many words?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acceptance import acceptance
from processed_scores import ProcessedChecker
from sampled_draws import SAMPLES, after_each, judge_draws, judge_marginals, marginals
from speculative_pair import Pair, draft_tokens

from fixtures.serving.server import Server
from fixtures.speculation.answers import Ask
from fixtures.speculation.serve import ask_all

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.correctness, pytest.mark.timeout(3600)]

SAMPLING = {"temperature": 0.8, "top_p": 0.95}


def test_sampling_is_from_the_models_distribution_or_refused(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    depth = draft_tokens(pair.speculative)
    ask = Ask("sampled", prompts[0], {**SAMPLING, "max_new_tokens": depth, "ignore_eos": True})
    first = ask_all(server.url, [ask], together=1)[0]
    if first.refusal is not None:
        assert pair.speculative.box != "cpu", f"the CPU platform serves it: {first.refusal}"
        assert "temperature" in first.refusal, f"refused without naming the temperature: {first.refusal}"
        pytest.skip(f"refused: {first.refusal}")
    found, answers = judge_draws(server.url, prompts[0], SAMPLING, checker, depth=depth, samples=SAMPLES)
    print(f"\n{len(answers)} draws, {len({answer.tokens for answer in answers})} distinct: {acceptance(answers)}")
    assert not found, "\n".join(map(str, found))
    assert sum(answer.correct_drafts for answer in answers) > 0, "no draft was accepted: nothing was verified"


def test_greedy_requests_stay_greedy_beside_sampled_ones(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    """One sampled request makes its batch's verify a sampling one, of the greedy requests too."""
    server = serve(pair.speculative)
    cap = {"max_new_tokens": 40, "ignore_eos": True}
    asks = [
        Ask(f"{'greedy' if index % 2 else 'sampled'}-{index}", prompt, cap if index % 2 else {**cap, **SAMPLING})
        for index, prompt in enumerate(prompts[:24])
    ]
    checked = checker.check(asks, ask_all(server.url, asks, together=12))
    assert len(checked.judged) == 12
    assert not checked.findings, checked.report


def test_the_check_knows_sampling_when_it_sees_it(checker: ProcessedChecker, prompts: list[tuple[int, ...]]) -> None:
    """The plain server samples: its own draws agree with its own probabilities, and not with another temperature's."""
    ask = Ask("sampled", prompts[0], {**SAMPLING, "max_new_tokens": 2, "ignore_eos": True})
    outputs = [answer.tokens for answer in ask_all(checker.reference.url, [ask] * 400, together=16)]
    after = after_each(prompts[0], outputs, SAMPLING, checker)
    assert not judge_marginals("plain", marginals(outputs, after, 2))
    hotter = after_each(prompts[0], outputs, {**SAMPLING, "temperature": 1.6}, checker)
    assert judge_marginals("plain", marginals(outputs, hotter, 2))
