"""The summary table: readable without colour, in order, and with nothing where nothing is known."""

from __future__ import annotations

import math

import pytest

from fixtures.gate.spec import VERDICTS, Judgement
from fixtures.report.next_steps import measure_again, next_step
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


def test_deployments_that_block_come_first_and_text_is_not_markup():
    rows = {
        ("quiet", "a"): judged("a", "no change", 1.01),
        ("loud", "b"): judged("b", "regression", 0.9, reason="[red]it is[/red] slow"),
    }
    text = render(rows, 140, False)
    assert text.index("loud") < text.index("quiet")
    assert "[red]it is[/red] slow" in text


def test_a_narrow_terminal_has_the_reasons_below_and_says_each_once():
    rows = {("d", name): judged(name, "measurement failed", reason="the server did not start") for name in "abc"}
    text = render(rows, 70, False)
    assert text.count("the server did not start") == 1
    assert "! d a and 2 more: the server did not start" in text


def test_reasons_are_not_squeezed_into_what_long_names_leave():
    rows = {("d", "w" * 70): judged("w" * 70, "measurement failed", reason="the server did not start at all")}
    assert "! d " + "w" * 70 + ": the server" in " ".join(render(rows, 120, False).split())
    assert "the server did not start at all" in render(rows, 200, False).splitlines()[1]


def test_quiet_shows_only_what_blocks():
    rows = {("d", "a"): judged("a", "no change", 1.0), ("d", "b"): judged("b", "regression", 0.9)}
    text = render(rows, 140, False, quiet=True)
    assert "regression" in text
    assert "no change" not in text
    assert render({("d", "a"): judged("a", "no change", 1.0)}, 140, False, quiet=True) == ""


def test_the_next_step_is_a_command_that_repeats_the_measurement():
    found = judged("single_stream/ttft_ms", "regression", 1.1)
    step = next_step("cpu", "eagle3", found, starts=1)
    assert step.endswith("pytest -m perf --box=cpu --deployment=eagle3 --workload=single_stream --starts=5")
    assert next_step("cpu", "eagle3", judged("kv_tokens", "no change"), 1) is None
    assert measure_again("my box", "d", ["kv_tokens"], 3) == "pytest -m perf --box='my box' --deployment=d --starts=3"
