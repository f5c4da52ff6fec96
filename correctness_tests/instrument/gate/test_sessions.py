"""Starts that were not mixed in time: what a session or a drift makes is no change of the software."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gate_cases import BASE, TOK_S, starts

from fixtures.gate.baselines import BaselineMetric
from fixtures.gate.decide import decide
from fixtures.gate.sessions import least_change, of_one_run, sessions_of, trend
from fixtures.gate.spec import Starts
from fixtures.gate.unchanged import BASELINES, MACHINES, Machine, stored_baseline
from fixtures.records.start import StartRecord

ROWS = 4000
BROTHERS = {"warms up, 2 % in 5 starts": Machine(drift=-0.004), "AR(1) 0.8": Machine(autocorrelation=0.8)}


@pytest.mark.parametrize("stored", BASELINES)
@pytest.mark.parametrize("machine", [*MACHINES, *BROTHERS])
def test_an_unchanged_machine_is_blocked_once_in_a_hundred_at_most(machine: str, stored: str):
    made = {**MACHINES, **BROTHERS}[machine]
    found = stored_baseline(made, BASELINES[stored], 0.0, np.random.default_rng(1), ROWS).mean()
    assert found <= 0.0125  # 1 %, and what 4,000 comparisons leave open


def test_without_the_sessions_it_would_not_hold():
    """The control: the same machines, taken for starts that were mixed in time."""
    rng = np.random.default_rng(1)
    for name in ("drift 1 %/h, 20 min", "sessions, sd 2 %"):
        assert stored_baseline(MACHINES[name], (10,), 0.0, rng, ROWS, aware=False).mean() > 0.1


@pytest.mark.parametrize("stored", BASELINES)
def test_a_slowdown_of_ten_percent_is_found_all_the_same(stored: str):
    found = stored_baseline(MACHINES["independent"], BASELINES[stored], 0.10, np.random.default_rng(1), ROWS).mean()
    assert found > 0.95


def given(values: Any, session: str | list[str]) -> Starts:
    names = [session] * len(values) if isinstance(session, str) else session
    return Starts(tuple(values), sessions=tuple(names))


def test_a_baseline_of_one_session_calls_no_small_change_and_says_why():
    found = decide(TOK_S, given(BASE, "a"), given(starts(96, 5, 2), "b"), given(starts(96, 5, 3), "b"))
    assert found.verdict == "too noisy to tell"
    assert "starts of one session cannot tell less than 7" in found.reason
    assert "--against" in found.reason
    assert not found.needs_confirmation
    assert found.smallest_detectable > 0.07
    assert decide(TOK_S, given(BASE, "a"), given(starts(90, 5, 2), "b"), given(starts(90, 5, 3), "b")).blocks


def test_sessions_that_agree_let_a_smaller_change_be_called():
    base = starts(100, 10, 1, 0.002)
    names = [str(at // 2) for at in range(10)]
    first, fresh = starts(95, 5, 2, 0.002), starts(95, 5, 3, 0.002)
    assert decide(TOK_S, given(base, names), given(first, "new"), given(fresh, "new")).verdict == "regression"
    assert decide(TOK_S, given(base, "one"), given(first, "new"), given(fresh, "new")).verdict == "too noisy to tell"


def test_sessions_that_differ_hide_what_they_differ_by():
    apart = [100 * (1 + 0.02 * (at // 2 - 2)) for at in range(10)]
    found = decide(TOK_S, given(apart, [str(at // 2) for at in range(10)]), given(starts(95, 5, 2), "new"))
    assert found.verdict == "too noisy to tell"


def test_the_control_of_the_same_run_is_preferred():
    """Starts that were mixed in time are met by the same drift."""
    first, fresh = starts(96, 5, 2), starts(96, 5, 3)
    assert decide(TOK_S, given(BASE, "run"), given(first, "run"), given(fresh, "run")).verdict == "regression"


def test_a_trend_inside_a_session_counts_over_all_starts():
    rising = 0.002 * np.arange(10) + 0.0005 * np.random.default_rng(1).standard_normal(10)
    assert float(trend(rising[None])[0]) == pytest.approx(0.002, rel=0.1)
    flat = 0.02 * np.random.default_rng(2).standard_normal((2000, 10))
    assert (trend(flat) != 0).mean() == pytest.approx(0.01, abs=0.007)
    assert not trend(flat[:, :4]).any()
    found = least_change(rising[None], rising[None, :5], ("run",) * 10, ("run",) * 5)
    assert float(found[0]) == pytest.approx(0.002 * 15, rel=0.1)


def record(at: int, run: str, moment: str) -> StartRecord:
    return StartRecord(f"s{at}", run, "cpu", "cpu", "baseline", "stage1", at, moment)


def test_a_session_ends_with_its_run_or_with_a_long_pause():
    moments = ["2026-11-29T22:00:00Z", "2026-11-30T00:30:00Z", "2026-11-30T09:00:00Z"]
    found = sessions_of([record(at, "tonight", moment) for at, moment in enumerate(moments)])
    assert found["s0"] == found["s1"] != found["s2"]
    assert len({*sessions_of([record(0, "a", moments[0]), record(1, "b", moments[0])]).values()}) == 2


@pytest.mark.parametrize(("order", "mixed"), [("CACACACACA", True), ("CAACCAACCA", True), ("CCCCCAAAAA", False)])
def test_sides_of_one_run_are_mixed_in_time_or_are_as_two_sessions(order: str, mixed: bool):
    made = [record(at, "r", f"2026-11-29T10:{at:02}:00Z") for at in range(len(order))]
    control = [each for each, side in zip(made, order, strict=True) if side == "C"]
    names = of_one_run(control, [each for each in made if each not in control])
    assert (names[0] == names[1]) is mixed


def test_a_stored_baseline_without_sessions_is_of_one():
    metric = BaselineMetric("w/x", "x", "w", "ms", "timing", "lower", (1.0, 1.1), ("a", "b"))
    assert len({*metric.given().sessions}) == 1
