"""The line that says what a run is doing, on a terminal and in a CI log."""

from __future__ import annotations

import io
from contextlib import nullcontext

from fixtures.report.progress import ProgressLine


class Capture:
    def global_and_fixture_disabled(self):
        return nullcontext()


class Screen(io.StringIO):
    def isatty(self):
        return True


STEPS = ["starting", "single_stream: warming up", "single_stream: 3 of 12 requests", "stopping", "measured"]


def shown(stream, *, quiet=False, expected=3):
    line = ProgressLine(Capture(), stream, quiet)
    line.expected = expected
    for step in STEPS:
        line.show("eagle3 start 1/3", step)
    return stream.getvalue()


def test_a_terminal_sees_every_step_on_one_line():
    text = shown(Screen())
    assert "\n" not in text
    assert all(step in text for step in STEPS)


def test_a_log_has_two_lines_for_each_start():
    lines = shown(io.StringIO()).strip().splitlines()
    assert [line.split("] ")[1].split(" (")[0] for line in lines] == [
        "eagle3 start 1/3: starting",
        "eagle3 start 1/3: measured",
    ]


def test_it_says_what_remains():
    text = shown(io.StringIO())
    assert "3 of 3 starts to go)" in text
    assert "2 of 3 starts to go, about 00:00" in text


def test_confirming_starts_are_not_those_that_were_planned():
    stream = io.StringIO()
    line = ProgressLine(Capture(), stream)
    line.expected = 2
    line.show("eagle3 confirming start 1/5", "measured")
    assert "2 of 2 starts to go)" in stream.getvalue()


def test_quiet_prints_nothing():
    assert shown(io.StringIO(), quiet=True) == shown(Screen(), quiet=True) == ""


def test_start_pairs_are_counted_as_pairs():
    stream = io.StringIO()
    line = ProgressLine(Capture(), stream)
    line.expected, line.what = 3, "start pairs"
    line.show("eagle3 start pair 1/3", "starting against HEAD")
    line.show("eagle3 start pair 1/3", "starting candidate")
    line.show("eagle3 start pair 1/3", "single_stream: block pair 1 of 8")
    line.show("eagle3 start pair 1/3", "measured")
    line.show("eagle3 confirming start pair 1", "measured")
    lines = stream.getvalue().strip().splitlines()
    assert len(lines) == 4
    assert "3 of 3 start pairs to go)" in lines[1]
    assert all("2 of 3 start pairs to go, about" in line for line in lines[2:])


def test_a_log_says_why_a_series_of_starts_ends_early():
    stream = io.StringIO()
    ProgressLine(Capture(), stream).show("eagle3", "no baseline can be saved: s0 and s3 differ in driver")
    assert "no baseline can be saved" in stream.getvalue()
