"""Terminal, page, Markdown and the other files say the same of one run."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from report_cases import page, records_of, view_from

from fixtures.gate.spec import Judgement
from fixtures.records.passes import PassSummary
from fixtures.report.files import json_lines, markdown_summary
from fixtures.report.page.build import render_page
from fixtures.report.terminal import write_campaign, write_summary


def on_terminal(view):
    """What the summary prints."""
    stream = io.StringIO()
    reporter = SimpleNamespace(
        hasmarkup=False, write=stream.write, write_line=lambda line: stream.write(f"{line}\n"),
        section=lambda title: stream.write(f"== {title} ==\n"),
    )  # fmt: skip
    write_summary(reporter, view, [], saving=False, quiet=False)
    write_campaign(reporter, view)
    return stream.getvalue()


def steps(view):
    return next(each for each in page(view).sections if each.id == "steps")


def with_pass(record, median_s):
    """The record with another median of its target's passes."""
    target, draft = record.passes["single_stream"].passes
    record.passes["single_stream"] = PassSummary((replace(target, median_s=median_s), draft))
    return record


def at_rate(record, rate):
    record.metrics = [replace(each, value=rate) if each.name == "decode_tok_s" else each for each in record.metrics]
    return record


def test_a_pass_longer_than_its_step_is_not_known_anywhere():
    """20 ms of passes at 2.8 tokens in a step of 10 ms."""
    view = view_from({}, [at_rate(record, 280.0) for record in records_of("d", 2)])
    assert "d: not known: attribution: passes of 0.024000 s in a step of 0.010000 s" in on_terminal(view)
    section = steps(view)
    assert section.figures == ()
    assert "d: not known: attribution: passes of 0.024000 s in a step of 0.010000 s" in " ".join(section.notes)


def test_a_start_without_pass_counters_leaves_the_others():
    records = records_of("d", 3)
    records[1].passes = {}
    view = view_from({}, records)
    assert re.search(r"^d: step .* \(2 starts\)$", on_terminal(view), re.MULTILINE)
    (figure,) = steps(view).figures
    assert [row[:2] for row in figure.table.rows] == [("d single_stream", "2")]


def test_the_whole_of_a_step_is_one_figure():
    """Medians of parts do not add up to the median step: the whole is what the client saw."""
    cases = ((0.010, 100.0), (0.012, 30.0), (0.020, 90.0))
    view = view_from(
        {}, [with_pass(at_rate(each, r), s) for each, (s, r) in zip(records_of("d", 3), cases, strict=True)]
    )
    (told,) = re.findall(r"^d: step (\S+) ms", on_terminal(view), re.MULTILINE)
    (figure,) = steps(view).figures
    *parts, whole = map(float, figure.table.rows[0][2:])
    assert whole == pytest.approx(float(told), rel=0.005)
    assert sum(parts) == pytest.approx(whole, rel=0.01)


def judged(key, verdict, ratio=0.8):
    return Judgement(
        key, verdict, f"{key} is {verdict}", ratio=ratio, slowdown=0.2, interval=(0.7, 0.9), unit="tok/s",
        kind="timing", better="higher", baseline_value=100.0, candidate_value=80.0, p_value=1e-5, level=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "command"),
    [
        (("regression", "regression"), "--workload=one,two --starts=5"),
        (("regression", "measurement failed"), "--workload=one,two --starts=5"),
        (("measurement failed", "measurement failed"), "--workload=one,two --starts=1"),
        (("regression", "too noisy to tell"), "--workload=one --starts=5"),
    ],
)
def test_the_next_step_of_a_deployment_is_one_command(verdicts, command):
    rows = {("d", f"{name}/rate"): judged(f"{name}/rate", v) for name, v in zip(("one", "two"), verdicts, strict=True)}
    view = view_from(rows, [])
    whole = f"pytest -m perf --box=cpu --deployment=d {command}"
    for text in (on_terminal(view), markdown_summary(view), render_page(page(view))):
        assert set(re.findall(r"pytest -m perf [^`<\n]*--starts=\d", text)) == {whole}


def test_every_format_has_the_same_rows_in_the_same_order():
    verdicts = ["no change", "improvement", "regression", "too noisy to tell"]
    rows = {
        (name, f"w/{n}"): judged(f"w/{n}", verdict, 1 - 0.1 * n)
        for name in ("late", "early") for n, verdict in enumerate(verdicts[: 2 + 2 * (name == "early")])
    }  # fmt: skip
    view = view_from(rows, [])
    order = [(row.deployment, row.key) for row in view.judged]
    assert order[0] == ("early", "w/2"), "what blocks comes first"
    words = [line.split()[0] for line in on_terminal(view).splitlines() if re.match(r" +\d ", line)]
    assert [f"w/{word}" for word in words] == [key for _, key in order]
    html = [
        (each.view.name, row.key, row.before, row.now, row.change_text)
        for each in page(view).deployments
        for row in each.view.judged
    ]
    assert [each[:2] for each in html] == order
    cells = [
        line.split(" | ")[:5] for line in markdown_summary(view).splitlines() if re.match(r"\| (late|early)", line)
    ]
    assert {(name.strip("| "), *rest) for name, *rest in cells} == set(html)
    for row in view.judged:
        assert dict(row.properties("cpu", "cpu"))["change"] == row.change_text
        assert row.change_text in on_terminal(view)
        assert row.change_text in render_page(page(view))
    assert json_lines(view).count('"verdict"') == len(order)


def test_a_picture_says_the_figures_of_the_view():
    """Places are rounded to be short, figures are not."""
    view = view_from({("d", "w/rate"): judged("w/rate", "regression", 0.769)}, [])
    (row,) = view.judged
    assert row.change_text == "0.769 x the rate (0.7 to 0.9)"
    assert ">0.769 x the rate<" in page(view).forest.svg
