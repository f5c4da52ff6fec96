"""The summary table: readable without colour, in order, and with nothing where nothing is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.deployments import load_box
from fixtures.gate.spec import VERDICTS, Judgement
from fixtures.report.next_steps import LATENCY_TESTS, Repeat
from fixtures.report.row import LOOKS, NOT_JUDGED, figure
from fixtures.report.terminal import render as render_view
from fixtures.report.view import view_of

CPU = load_box("cpu")


def judged(key: str, verdict: str, ratio: float = math.nan, reason: str = "because") -> Judgement:
    return Judgement(key=key, verdict=verdict, reason=reason, ratio=ratio, unit="tok/s", candidate_value=100.0)


def render(rows, width, colour, quiet=False):
    view = view_of(
        box=CPU, box_line="", stack="cpu", results=Path("/r"), repeat=Repeat("cpu", 1), rows=rows, records=[],
        baselines={},
    )  # fmt: skip
    return render_view(view, width, colour, quiet)


def test_every_verdict_has_a_sign_of_its_own():
    assert set(LOOKS) >= {*VERDICTS, NOT_JUDGED}
    assert len({look.sign for look in LOOKS.values()}) == len(LOOKS)


def test_within_a_deployment_blocking_verdicts_come_first_then_wide_effects():
    rows = {
        ("one", "a"): judged("a", "no change", 1.01),
        ("one", "b"): judged("b", "improvement", 1.4),
        ("one", "c"): judged("c", "regression", 0.9),
        ("two", "d"): judged("d", "no change", 3.0),
    }
    lines = [line.split() for line in render(rows, 140, False).splitlines()]
    assert [line[0] for line in lines if line[0] in "abcd"] == list("cbad")


@pytest.mark.parametrize("width", [60, 80, 99, 100, 200])
def test_it_fits_the_terminal_and_needs_no_colour(width):
    rows = {("deployment", "workload/metric"): judged("workload/metric", "measurement failed", reason="x" * 300)}
    text = render(rows, width, False)
    assert "\x1b" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_the_verdict_is_whole_in_a_usual_terminal():
    text = render({("d", "w/m"): judged("w/m", "no comparable baseline")}, 80, False)
    assert "? no comparable baseline" in text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (math.nan, "ms", ""),
        (82, "tok/s", "82 tok/s"),
        (89.53, "tok/s", "89.5 tok/s"),
        (0.01234, "ms", "0.0123 ms"),
        (20000, "tokens", "20000 tokens"),
        (1234.6, "us", "1235 us"),
    ],
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


@pytest.mark.parametrize("width", [70, 200])
def test_a_reason_is_said_once_below_the_figures(width):
    rows = {("d", name): judged(name, "measurement failed", reason="the server did not start") for name in "abc"}
    text = render(rows, width, False)
    assert text.count("the server did not start") == 1
    assert "! a and 2 more: measurement failed: the server did not start" in text


def test_a_missing_baseline_is_one_line_with_the_command_that_makes_one():
    rows = {("d", f"w/{n}"): judged(f"w/{n}", "no comparable baseline", reason="there is none") for n in range(9)}
    (line,) = [line for line in render(rows, 200, False).splitlines() if "no comparable" in line]
    command = "pytest -m perf --box=cpu --deployment=d --starts=10 --save-baseline=REASON"
    assert line == f"  ? no comparable baseline: there is none (9 metrics); save a baseline: {command}"
    assert [line for line in render(rows, 60, False).splitlines() if "pytest" in line] == [f"    {command}"]


def test_quiet_shows_only_what_blocks():
    rows = {("d", "a"): judged("a", "no change", 1.0), ("d", "b"): judged("b", "regression", 0.9)}
    text = render(rows, 140, False, quiet=True)
    assert "regression" in text
    assert "no change" not in text
    assert render({("d", "a"): judged("a", "no change", 1.0)}, 140, False, quiet=True) == ""


def test_the_next_step_is_a_command_that_repeats_the_measurement():
    found = judged("single_stream/ttft_ms", "regression", 1.1)
    _, command = Repeat("cpu", 1).next_step("eagle3", [found])
    assert command == ("pytest -m perf --box=cpu --deployment=eagle3 --workload=single_stream --starts=5")
    assert Repeat("cpu", 1).next_step("eagle3", [judged("kv_tokens", "no change")]) is None
    plain = Repeat("my box", 1).measure("d", ["kv_tokens"], 3)
    assert plain == "pytest -m perf --box='my box' --deployment=d --starts=3"


NARROWED = Repeat("./my box.toml", 1, Path("/data/old ones"), ("a", "b"), ("single_stream",))
WHERE = "pytest -m perf --box='./my box.toml' --baselines='/data/old ones'"


def test_commands_have_the_options_that_the_run_was_given():
    judge = f"{WHERE} --deployment=a,b --workload=single_stream --from-results=/r"
    assert NARROWED.judge(Path("/r")) == judge
    assert NARROWED.measure("a", ["kv_tokens"], 5) == f"{WHERE} --deployment=a --workload=single_stream --starts=5"
    assert NARROWED.measure("a", ["other/ttft_ms"], 5) == f"{WHERE} --deployment=a --workload=other --starts=5"


def test_a_baseline_is_measured_whole():
    _, command = NARROWED.next_step("a", [judged("single_stream/ttft_ms", "improvement", 0.8)])
    assert command.endswith(f"{WHERE} --deployment=a --starts=10 --save-baseline=REASON")


@pytest.mark.parametrize(("verdict", "starts"), [("regression", "5"), ("no comparable baseline", "10")])
def test_ranks_are_no_deployment(verdict, starts):
    key = "all-reduce-nccl-8-ranks-14336-bytes-eager/all_reduce_us"
    _, command = NARROWED.next_step("all_reduce_nccl_cuda_8", [judged(key, verdict, 1.2)])
    measure = f"{WHERE} perf_tests/test_all_reduce_latency.py --starts={starts}"
    assert command.removesuffix(" --save-baseline=REASON") == measure
    assert (Path(__file__).parents[3] / LATENCY_TESTS).is_file()


def test_start_pairs_are_not_measured_again_as_starts():
    assert replace(NARROWED, paired=True).next_step("a", [judged("single_stream/ttft_ms", "regression", 1.1)]) is None
