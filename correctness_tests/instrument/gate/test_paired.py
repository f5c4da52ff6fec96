"""Paired mode: what it sees through, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fixtures.gate.decide import decide
from fixtures.gate.paired import StartPair, balanced_order, decide_paired, gain
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
    found = decide_paired(TOK_S, session(factor, seed=seed), share=share)
    if found.needs_confirmation:
        fresh = session(factor, pairs=found.starts_wanted, seed=seed + 1000)
        found = decide_paired(TOK_S, session(factor, seed=seed), fresh, share=share)
    return found.verdict


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
    quiet = decide_paired(TOK_S, session(1.0, block_noise=0.005)).smallest_detectable
    loud = decide_paired(TOK_S, session(1.0, block_noise=0.05)).smallest_detectable
    assert 0.02 <= quiet < loud < 0.5


def test_no_change_needs_five_percent_excluded():
    assert decide_paired(TOK_S, session(1.0, block_noise=0.005)).verdict == "no change"
    assert decide_paired(TOK_S, session(1.0, pairs=3, block_noise=0.15)).verdict == "too noisy to tell"


def test_stage_2_decides_alone():
    first = session(0.96, pairs=4, seed=3, block_noise=0.03)
    asked = decide_paired(TOK_S, first, share=0.001)
    assert asked.needs_confirmation
    cleared = decide_paired(TOK_S, first, session(1.0, seed=9, block_noise=0.005), share=0.001)
    assert cleared.verdict == "no change"
    assert decide_paired(TOK_S, first, session(0.96, seed=9, block_noise=0.01), share=0.001).verdict == "regression"


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


def test_stage_2_must_not_use_a_start_again():
    pairs = session(0.8)
    assert decide_paired(TOK_S, pairs, pairs).verdict == "measurement failed"
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
