"""Paired mode: what it sees through, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fixtures.gate.decide import decide
from fixtures.gate.paired import LEAST, LEVELS, MOST, StartPair, balanced_order, decide_paired, gain, paired_signs
from fixtures.gate.spec import MetricSpec

TOK_S = MetricSpec("single_stream/decode_tok_s", "timing", "higher", "tok/s")


def session(
    factor: float, pairs: int = 5, blocks: int = 8, seed: int = 0, wander: float = 0.15, block_noise: float = 0.02
) -> list[StartPair]:
    """A shared machine: its speed wanders by 15 % between start pairs and drifts by 10 % within one."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(pairs):
        machine = 100 * math.exp(rng.normal(0, wander)) * np.linspace(1, 0.9, 2 * blocks)
        order = balanced_order(blocks)
        old, new = [], []
        for block, candidate_first in enumerate(order):
            early, late = machine[2 * block], machine[2 * block + 1]
            noise = np.exp(rng.normal(0, block_noise, 2))
            old.append((late if candidate_first else early) * noise[0])
            new.append((early if candidate_first else late) * noise[1] * factor)
        made.append(StartPair(tuple(old), tuple(new), order, (f"{seed}b{index}", f"{seed}c{index}")))
    return made


def judged(factor: float, seed: int, share: float = 0.001) -> str:
    return decide_paired(TOK_S, session(factor, pairs=MOST, seed=seed), share=share).verdict


def test_a_twenty_percent_slowdown_is_a_regression_on_a_machine_that_wanders():
    assert [judged(1 / 1.2, seed) for seed in range(20)] == ["regression"] * 20


def test_an_unchanged_pair_is_not():
    assert "regression" not in [judged(1.0, seed) for seed in range(200)]


def test_it_finds_what_unpaired_starts_of_the_same_session_cannot():
    pairs = session(1 / 1.08, pairs=10)
    assert decide_paired(TOK_S, pairs).verdict == "regression"
    old = [float(np.mean(pair.baseline)) for pair in pairs]
    new = [float(np.mean(pair.candidate)) for pair in pairs]
    assert decide(TOK_S, old, new[:5], new[5:]).verdict == "too noisy to tell"
    assert gain(pairs, "higher") > 5


def test_the_start_pair_is_the_unit_not_the_block():
    """Launches that differ by 5 % each make a hundred blocks agree on the wrong answer."""
    rng = np.random.default_rng(5)
    alarms = 0
    for seed in range(100):
        pairs = [
            replace(pair, candidate=tuple(each * math.exp(shift) for each in pair.candidate))
            for pair, shift in zip(session(1.0, seed=seed, blocks=20), rng.normal(0, 0.05, 5), strict=True)
        ]
        alarms += decide_paired(TOK_S, pairs).verdict in ("regression", "improvement")
    assert alarms <= 3


def test_few_start_pairs_are_never_a_verdict():
    for count in (1, 2):
        found = decide_paired(TOK_S, session(0.5, pairs=count))
        assert found.verdict == "too noisy to tell"
        assert "needs 3" in found.reason


def test_the_smallest_resolvable_change_grows_with_the_noise():
    quiet = decide_paired(TOK_S, session(1.0, pairs=3, block_noise=0.005)).smallest_detectable
    loud = decide_paired(TOK_S, session(1.0, pairs=3, block_noise=0.02)).smallest_detectable
    assert 0.02 <= quiet < loud


def test_no_change_needs_five_percent_excluded():
    assert decide_paired(TOK_S, session(1.0, pairs=MOST, block_noise=0.005)).verdict == "no change"
    assert decide_paired(TOK_S, session(1.0, pairs=3, block_noise=0.15)).verdict == "too noisy to tell"


def test_pairs_stop_by_themselves_and_never_before_three():
    slow = session(0.5, pairs=MOST, block_noise=0.01)
    assert decide_paired(TOK_S, slow[:2]).needs_confirmation
    found = decide_paired(TOK_S, slow)
    assert (found.verdict, found.candidate_starts) == ("regression", LEAST)
    loud = session(1.04, pairs=MOST, block_noise=0.6)
    assert decide_paired(TOK_S, loud[:-1]).needs_confirmation
    last = decide_paired(TOK_S, loud)
    assert (last.verdict, last.needs_confirmation) == ("too noisy to tell", False)


def test_the_first_verdict_stands():
    """What is measured later, for another metric, changes nothing."""
    slow = session(0.5, pairs=4, block_noise=0.01)
    later = session(1.5, pairs=8, seed=7, block_noise=0.01)
    assert decide_paired(TOK_S, [*slow, *later]).verdict == "regression"


@pytest.mark.parametrize("share", [0.01, 0.001])
def test_looks_after_every_pair_spend_no_more_than_the_share(share: float):
    """Planted: a look after each pair at the plain level spends several times as much."""
    ratios = 0.05 * np.random.default_rng(1).standard_normal((20_000, MOST))
    assert float((paired_signs(ratios, share) > 0).mean()) <= share
    spread = [ratios[:, :end].std(axis=1, ddof=1) / math.sqrt(end) for end in range(LEAST, MOST + 1)]
    means = [ratios[:, :end].mean(axis=1) for end in range(LEAST, MOST + 1)]
    plain = [stats.t.isf(share, end - 1) for end in range(LEAST, MOST + 1)]
    alarms = np.array([mean > far * error for mean, error, far in zip(means, spread, plain, strict=True)])
    assert float(alarms.any(axis=0).mean()) > 2 * share
    assert len(LEVELS) == MOST - LEAST + 1


@pytest.mark.parametrize(("cv", "change", "least"), [(0.005, 0.05, 0.97), (0.01, 0.05, 0.85), (0.02, 0.10, 0.85)])
def test_what_pairs_find(cv: float, change: float, least: float):
    ratios = math.sqrt(2) * cv * np.random.default_rng(2).standard_normal((4000, MOST)) + math.log1p(change)
    assert float((paired_signs(ratios, 0.01) > 0).mean()) >= least


def test_balanced_order():
    assert balanced_order(4) == (False, True, True, False)
    for count in (2, 4, 6, 8, 20):
        assert sum(balanced_order(count)) * 2 == count
    for count in (0, 1, 3):
        with pytest.raises(ValueError, match="even"):
            balanced_order(count)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"candidate": (math.nan, 1.0, 1.0, 1.0)}, "NaN"),
        ({"candidate": (0.0, 1.0, 1.0, 1.0)}, "above zero"),
        ({"candidate": (1.0, 1.0)}, "as many of each"),
        ({"candidate_first": (True, True, True, False)}, "3 of 4 block pairs: not balanced"),
    ],
)
def test_what_is_no_evidence_fails_the_measurement(change: dict[str, tuple[float, ...]], told: str):
    good = StartPair((1.0,) * 4, (1.0,) * 4, balanced_order(4))
    found = decide_paired(TOK_S, [good, good, replace(good, **change)])
    assert found.verdict == "measurement failed"
    assert told in found.reason


def test_no_start_may_be_used_twice():
    pairs = session(0.8)
    assert decide_paired(TOK_S, [*pairs, *pairs]).verdict == "measurement failed"
    assert decide_paired(TOK_S, []).verdict == "measurement failed"
    assert decide_paired(MetricSpec("kv_tokens", "exact", "higher"), pairs).verdict == "measurement failed"


def test_one_server_after_the_other_is_balanced_over_start_pairs():
    """Where there is room for one server, a side has all its blocks first: it must not be always the same."""

    def in_turn(firsts: tuple[bool, ...]) -> list[StartPair]:
        pairs = session(0.8, pairs=len(firsts))
        return [replace(pair, candidate_first=(f,) * 8) for pair, f in zip(pairs, firsts, strict=True)]

    assert decide_paired(TOK_S, in_turn((False, True, False, True, False))).verdict == "regression"
    found = decide_paired(TOK_S, in_turn((True, True, True, True)))
    assert found.verdict == "measurement failed"
    assert "started first in 4 of 4 start pairs: not balanced" in found.reason
