"""Penalties, biases and minimum lengths on replayed scores, against logits worked out by hand."""

from __future__ import annotations

import math
import random

import pytest
from processed_scores import (
    MISTAKES,
    PROBE_PENALTIES,
    every_token,
    normaliser,
    processed,
    shown_by,
)
from trial import one_late, one_per_pass

TOKENS = [3, 4, 3, 5]
LOGITS = {3: 2.0, 4: -1.0, 5: 0.5, 6: 1.0}
NORMALISER = math.log(sum(math.exp(logit) for logit in LOGITS.values()))
ROW = {token: logit - NORMALISER for token, logit in LOGITS.items()}


def scores(sampling: dict[str, object], counted: list[int], **more: object) -> dict[int, float]:
    """The processed logits of one position, shifted so that the token 6, which nothing here touches, is 1."""
    found = processed([ROW], sampling, [counted], **more)[0]
    return {token: score - found[6] + 1.0 for token, score in found.items()}


def test_every_token_before_a_position_counts() -> None:
    assert every_token(TOKENS) == [[], [3], [3, 4], [3, 4, 3]]


def test_under_eagle_the_last_token_of_each_pass_counts() -> None:
    # Passes: the prefill brought 3; the first verify brought 4, 3; the second brought 5.
    assert one_per_pass(TOKENS, [0, 1, 1, 2]) == [[], [3], [3], [3, 3]]


def test_an_overlapped_schedule_counts_one_late() -> None:
    assert one_late([9, 8], TOKENS) == [[], [8], [8, 3], [8, 3, 4]]


def test_a_mistake_shows_by_the_first_choice_that_it_changes() -> None:
    """Two likely tokens, level at first: each counts for itself, and a count too many soon moves the choice."""
    rows = [{1: -0.5, 2: -1.0, 3: -30.0}] * 6
    counted = every_token([1, 2, 1, 2, 1, 2])
    right = processed(rows, {"frequency_penalty": 2.0}, counted)
    for name, wrong in MISTAKES["frequency_penalty"].items():
        seen = shown_by(right, processed(rows, {"frequency_penalty": wrong(2.0)}, counted))
        assert (seen > 1) == (name == "ignored")
    assert shown_by(right, right) == 0
    gap = [{1: -0.5, 2: -11.0}] * 8
    alike = every_token([1] * 8)
    right = processed(gap, {"frequency_penalty": 2.0}, alike)
    assert shown_by(right, processed(gap, {"frequency_penalty": 4.0}, alike)) == pytest.approx(4.5)


def test_frequency_and_presence() -> None:
    found = scores({"frequency_penalty": 0.5, "presence_penalty": 0.25}, [3, 4, 3])
    assert found == pytest.approx({3: 2.0 - 1.25, 4: -1.0 - 0.75, 5: 0.5, 6: 1.0})


def test_repetition_divides_positive_and_multiplies_negative_logits_after_the_additive_penalties() -> None:
    found = scores({"repetition_penalty": 2.0, "presence_penalty": 1.0}, [3, 4], normalisers=[NORMALISER])
    assert found == pytest.approx({3: (2.0 - 1.0) / 2, 4: (-1.0 - 1.0) * 2, 5: 0.5, 6: 1.0})
    with pytest.raises(ValueError, match="normalisers"):
        scores({"repetition_penalty": 2.0}, [3])


def test_a_bias_comes_last() -> None:
    found = scores({"repetition_penalty": 2.0, "logit_bias": {"3": 1.5}}, [3], normalisers=[NORMALISER])
    assert found[3] == pytest.approx(2.0 / 2 + 1.5)


def test_min_new_tokens_holds_stop_tokens_back_until_enough_are_counted() -> None:
    assert scores({"min_new_tokens": 2}, [3], stop_tokens=[4])[4] == -math.inf
    assert scores({"min_new_tokens": 2}, [3, 5], stop_tokens=[4])[4] == pytest.approx(-1.0)


def test_a_grammar_forbids_what_it_does_not_allow() -> None:
    found = processed([ROW], {}, [[]], allowed=[{4, 5}])[0]
    assert {token for token, score in found.items() if score == -math.inf} == {3, 6}


def test_the_normaliser_is_found_from_two_penalties_for_logits_of_either_sign() -> None:
    draw = random.Random(1)
    penalties = PROBE_PENALTIES
    for _ in range(300):
        logit, total = draw.uniform(-8, 12), draw.uniform(0, 20)
        gains = [logit - (logit / r if logit > 0 else logit * r) for r in penalties]
        assert normaliser(gains, penalties, logit - total) == pytest.approx(total, abs=1e-6)
        noisy = [gain + draw.uniform(-0.1, 0.1) for gain in gains]
        assert normaliser(noisy, penalties, logit - total) == pytest.approx(total, abs=0.25)
