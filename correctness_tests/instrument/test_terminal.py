"""The summary table: readable without colour, in order, and with nothing where nothing is known."""

from __future__ import annotations

import math

import pytest

from fixtures.gate.spec import VERDICTS, Judgement
from fixtures.report.terminal import STYLES, render
from fixtures.report.verdicts import SIGNS, figure


def judged(key: str, verdict: str, ratio: float = math.nan, reason: str = "because") -> Judgement:
    return Judgement(key=key, verdict=verdict, reason=reason, ratio=ratio, unit="tok/s", candidate_value=100.0)


def test_every_verdict_has_a_sign_of_its_own():
    assert set(SIGNS) == set(STYLES) == set(VERDICTS)
    assert len(set(SIGNS.values())) == len(SIGNS)


def test_within_a_deployment_blocking_verdicts_come_first_then_wide_effects():
    rows = {
        ("one", "a"): judged("a", "no change", 1.01),
        ("one", "b"): judged("b", "improvement", 1.4),
        ("one", "c"): judged("c", "regression", 0.9),
        ("two", "d"): judged("d", "no change", 3.0),
    }
    lines = [line for line in render(rows, 140, False).splitlines() if line.strip()][1:]
    assert [line.split()[1] if index in (0, 3) else line.split()[0] for index, line in enumerate(lines)] == list("cbad")


@pytest.mark.parametrize("width", [40, 80, 99, 100, 200])
def test_it_fits_the_terminal_and_needs_no_colour(width):
    rows = {("deployment", "workload/metric"): judged("workload/metric", "measurement failed", reason="x" * 300)}
    text = render(rows, width, False)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_the_verdict_is_whole_in_a_usual_terminal():
    text = render({("d", "w/m"): judged("w/m", "no comparable baseline")}, 80, False)
    assert "? no comparable baseline" in text


def test_a_long_reason_is_said_once():
    rows = {("d", name): judged(name, "measurement failed", reason="the server did not start " * 5) for name in "abc"}
    text = render(rows, 200, False)
    assert text.count("as above") == 2


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(math.nan, "ms", ""), (82, "tok/s", "82 tok/s"), (89.53, "tok/s", "89.5 tok/s"), (0.01234, "ms", "0.0123 ms"),
     (20000, "tokens", "20000 tokens"), (1234.6, "us", "1235 us")],
)
def test_figures_have_three_digits(value, unit, text):
    assert figure(value, unit) == text
