"""Accept lengths that must alarm, and the weaker rules that the replay rule is compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import alternatives
import pytest
from acceptance import acceptance, judge_acceptance, judge_cache_hit, judge_decay, judge_paired

from fixtures.speculation.answers import Answer
from fixtures.speculation.replay import Symptom


def answer(histogram: Sequence[int], cached: int = 0) -> Answer:
    passes = sum(histogram)
    correct = sum(count * times for count, times in enumerate(histogram))
    return Answer(
        tokens=(1,) * (1 + passes + correct), completion_tokens=1 + passes + correct, cached_tokens=cached,
        verify_passes=passes, correct_drafts=correct, proposed_drafts=3 * passes, histogram=tuple(histogram),
    )


def test_figures_over_answers() -> None:
    figures = acceptance([answer([4, 2, 0, 4]), answer([1, 1])])
    assert figures.passes == 12
    assert figures.length == pytest.approx(1 + (2 + 12 + 1) / 12)
    assert figures.by_position == pytest.approx((7 / 12, 4 / 12, 4 / 12))


@pytest.mark.parametrize(
    ("answers", "alarm"),
    [([answer([2, 2, 2, 4])], False), ([answer([10])], True), ([answer([])], True), ([], True)],
)
def test_drafts_must_be_accepted(answers: list[Answer], alarm: bool) -> None:
    assert bool(judge_acceptance("case", answers, floor=2.0)) == alarm


def test_a_small_drop_shows_between_the_same_requests() -> None:
    draw = random.Random(3)
    before = [answer([4, 3, 3, draw.randrange(4, 12)]) for _ in range(32)]
    ties = [answer([*one.histogram[:3], one.histogram[3] + draw.choice([0, 0, 0, 1, -1])]) for one in before]
    lower = [answer([one.histogram[0] + 1, *one.histogram[1:3], one.histogram[3] - 1]) for one in before]
    assert not judge_paired("case", before, before)
    assert not judge_paired("case", before, ties)
    assert judge_paired("case", before, lower)[0].symptom == Symptom.ACCEPT_LENGTH


def test_a_cache_hit_must_not_cost_acceptance() -> None:
    good, bad = answer([1, 1, 1, 7], cached=80), answer([8, 1, 1, 0], cached=80)
    assert not judge_cache_hit("case", [answer([1, 1, 1, 7])], [good])
    assert judge_cache_hit("case", [answer([1, 1, 1, 7])], [bad])[0].symptom == Symptom.CACHE_HIT
    assert "came from the cache" in judge_cache_hit("case", [good], [answer([1, 1, 1, 7])])[0].line


def lengths(seed: int, decay: float, count: int = 300) -> list[float]:
    draw = random.Random(seed)
    return [max(1.0, draw.gauss(2.8 * (1 - decay * index / count), 0.6)) for index in range(count)]


def test_decay_alarms_and_noise_does_not() -> None:
    assert all(judge_decay("run", lengths(seed, 0.3)) for seed in range(20))
    assert not any(judge_decay("run", lengths(seed, 0.0)) for seed in range(200))
    with pytest.raises(ValueError, match="needs 50 requests"):
        judge_decay("run", [2.0] * 49)


def said(tokens: Sequence[int], second: int = 0) -> Answer:
    return Answer(tuple(tokens), top=tuple({token: -0.1, second: -1.0} for token in tokens))


def test_the_weaker_rules() -> None:
    plain = [said([1, 2, 3]), said([4, 5, 6])]
    tie = [said([1, 2, 3]), said([4, 7, 9], second=5)]
    assert alternatives.all_exact(plain, plain)
    assert not alternatives.all_exact(tie, plain)
    assert alternatives.exact_share(tie, plain) == 0.5
    assert not alternatives.most_exact(tie, plain)
    assert not alternatives.close(tie, plain)  # 7 is not among the plain server's likeliest
    assert alternatives.close([said([1, 2, 3]), said([4, 7, 9], second=5)], [plain[0], said([4, 5, 6], second=7)])
