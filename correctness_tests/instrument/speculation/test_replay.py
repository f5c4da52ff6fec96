"""The replay rule on made-up scores: what it must catch, what it must let pass."""

from __future__ import annotations

import math

import pytest

from fixtures.errors import MeasurementFailed
from fixtures.speculation.reference import Own, measure, rows_of
from fixtures.speculation.replay import (
    Judged,
    Noise,
    Position,
    Symptom,
    distinct,
    judge,
    judge_count,
    judge_logprobs,
    positions,
)

NOISE = Noise(epsilon=0.3, epsilon_logprob=0.25, positions=1536, regrets=5)
ROWS = [{7: -0.1, 8: -2.5, 9: -4.0}, {7: -1.0, 8: -0.9, 9: -3.0}, {9: -0.2, 7: -5.0, 8: -6.0}]


def test_the_best_tokens_have_no_regret() -> None:
    judged = judge("case", [7, 8, 9], ROWS, NOISE)
    assert [position.regret for position in judged.positions] == [0, 0, 0]
    assert not judged.findings
    assert not judged.report


def test_a_near_tie_is_told_apart_from_a_wrong_token() -> None:
    judged = judge("case", [7, 7, 9], ROWS, NOISE)
    assert not judged.findings
    assert "tie: token 1 is 7 where the reference has 8, regret 0.1000" in judged.report


def test_the_first_wrong_token_is_named_with_rank_regret_and_text() -> None:
    judged = judge("case", [7, 9, 8], ROWS, NOISE, decode=lambda tokens: "".join(chr(60 + token) for token in tokens))
    assert [finding.symptom for finding in judged.findings] == [Symptom.REGRET]
    line = judged.findings[0].line
    assert line.startswith("token 1 is 9 ('E'), rank 2, regret 2.100 over 0.300; the reference has 8 ('D') after 'C'")
    assert "2 positions of 3 in all" in line


def test_tokens_after_the_first_mismatch_are_judged_too() -> None:
    """What a comparison that stops at the first mismatch cannot see."""
    tie_then_wrong = judge("case", [7, 7, 8], ROWS, NOISE)
    assert tie_then_wrong.findings[0].line.startswith("token 2 is 8")


def test_an_equally_good_token_is_no_regret_and_no_other_is_named() -> None:
    assert positions([8], [{7: -1.0, 8: -1.0}]) == (Position(0, 8, 0.0, 0, 8),)


def test_missing_rows_and_tokens_are_errors_not_passes() -> None:
    with pytest.raises(ValueError, match="2 replayed positions for 3 tokens"):
        positions([7, 8, 9], ROWS[:2])
    with pytest.raises(ValueError, match="without its token 5"):
        positions([5], ROWS[:1])


@pytest.mark.parametrize(("regrets", "alarm"), [(0, False), (5, False), (15, False), (40, True)])
def test_more_regrets_than_the_references_own_are_an_alarm(regrets: int, alarm: bool) -> None:
    found = judge_count(regrets, 1500, NOISE)
    assert bool(found) == alarm
    assert not alarm or "40 of 1500 positions have a regret, 5 of 1536" in found[0].line


def test_a_tie_that_requests_share_is_counted_once() -> None:
    each = Judged("case", tuple(Position(index, 7, 0.1 * (index == 1), 0, 7) for index in range(3)))
    assert distinct([((1, 2), (7, 7, 7), each)] * 20) == (1, 3)
    assert distinct([((1, 2), (7, 7, 7), each), ((1, 3), (7, 7, 7), each)]) == (2, 6)


def test_a_forbidden_token_has_an_infinite_regret() -> None:
    judged = judge("case", [7], [{7: -math.inf, 8: -1.0}], NOISE)
    assert judged.worst == math.inf
    assert judged.findings


def test_logprobs_must_be_as_many_as_tokens_and_those_of_the_replay() -> None:
    right = [-0.15, -0.8, -0.2]
    assert not judge_logprobs("case", [7, 8, 9], right, [], ROWS, NOISE)
    few = judge_logprobs("case", [7, 8, 9], right[:2], [], ROWS, NOISE)
    assert [finding.symptom for finding in few] == [Symptom.LOGPROB_COUNT]
    shifted = judge_logprobs("case", [7, 8, 9], [-0.15, -0.15, -0.2], [], ROWS, NOISE)
    assert shifted[0].symptom == Symptom.LOGPROBS
    assert "token 1: 8 reported with -0.150, the replay has -0.900" in shifted[0].line
    alternatives = judge_logprobs("case", [7], [-0.1], [{7: -0.1, 8: -0.4}], ROWS[:1], NOISE)
    assert "8 reported with -0.400" in alternatives[0].line


def own(shift: float, count: int = 1000) -> list[Own]:
    decoded = {7: -0.5, 8: -1.5}
    replayed = {7: -0.5 + shift, 8: -1.5, 9: -7.0}
    return [Own([7] * count, [decoded] * count, [replayed] * count)]


def test_epsilon_is_twice_the_largest_shift_between_two_scores() -> None:
    noise = measure([*own(0.01), *own(-0.05)])
    assert noise.epsilon == pytest.approx(0.10)
    assert noise.epsilon_logprob == pytest.approx(0.10)
    assert (noise.positions, noise.regrets) == (2000, 0)


def test_a_shift_of_all_scores_alike_is_no_noise_of_differences() -> None:
    both = [Own([7] * 1000, [{7: -0.5, 8: -1.5}] * 1000, [{7: -0.7, 8: -1.7}] * 1000)]
    noise = measure(both)
    assert noise.epsilon == pytest.approx(0)
    assert noise.epsilon_logprob == pytest.approx(0.4)


def test_too_few_positions_or_a_reference_that_is_not_greedy_are_no_measurement() -> None:
    with pytest.raises(MeasurementFailed, match="999 positions, 1000 are needed"):
        measure(own(0.01, 999))
    sampled = [Own([8] * 1000, [{7: -0.5, 8: -1.5}] * 1000, [{7: -0.5, 8: -1.5}] * 1000)]
    with pytest.raises(MeasurementFailed, match="does not decode greedily"):
        measure(sampled)


def test_rows_of_a_replay_are_those_of_the_output() -> None:
    meta = {
        "input_token_logprobs": [[None, 5, None], [-0.5, 7, None], [-3.0, 0, None]],
        "input_top_logprobs": [None, [[-0.5, 7, None], [-1.5, 8, None]], [[-0.1, 7, None]]],
    }
    assert rows_of(meta, [7, 319]) == [{7: -0.5, 8: -1.5}, {7: -0.1, 319: -3.0}]
    with pytest.raises(MeasurementFailed, match="token 9 returned the logprob of token 7"):
        rows_of(meta, [9, 319])
    with pytest.raises(MeasurementFailed, match="4 tokens returned 3 positions"):
        rows_of(meta, [1, 5, 7, 319])
