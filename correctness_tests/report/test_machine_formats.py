"""Files that other programs read: JUnit XML, Markdown, JSON lines, pytest-benchmark's, and the exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from report_cases import records_of, view, view_from

from fixtures.gate.spec import Judgement
from fixtures.records.start import SCHEMA as RECORD_SCHEMA
from fixtures.records.start import StartRecord
from fixtures.report.files import HEAD, code, json_lines, markdown_summary, plain
from fixtures.report.row import MetricRow
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED, FailedMeasurement, Failures

SCHEMA = Path(__file__).with_name("junit.xsd")


def test_a_regression_and_a_failed_measurement_end_differently(judge):
    assert judge(0.1).code == 1
    assert judge(0.0, fail=True).code == EXIT_MEASUREMENT_FAILED


def test_the_exit_code_tells_only_failed_measurements_apart():
    def failures(*errors):
        found = Failures()
        for error in errors:
            with pytest.raises(type(error)) as caught:
                raise error
            found.note(caught)
        return found

    missing, other = FailedMeasurement("no figure"), ValueError("a bug")
    assert failures(missing).exit_status(1, 1) == EXIT_MEASUREMENT_FAILED
    assert failures(missing, other).exit_status(1, 2) == 1
    assert failures(other).exit_status(1, 1) == 1
    assert failures().exit_status(0, 0) == 0
    assert failures(missing).exit_status(2, 1) == 2  # interrupted
    assert EXIT_MEASUREMENT_FAILED not in range(6)


def test_junit_has_the_verdict_in_each_case(judge):
    xmlschema = pytest.importorskip("xmlschema", reason="xmlschema is not installed: pip install --group report_tests")
    judged = judge(0.1, "--junit-xml=@junit.xml")
    schema = xmlschema.XMLSchema(str(SCHEMA))
    schema.validate(judged.read("junit.xml"))

    cases = {case.get("name"): case for case in ET.fromstring(judged.read("junit.xml")).iter("testcase")}
    told = {p.get("name"): p.get("value") for p in cases["test_decode_rate[eagle3-single_stream]"].iter("property")}
    assert told["verdict"] == "regression"
    assert told["metric"] == "single_stream/decode_tok_s"
    assert float(told["ratio"]) == pytest.approx(1 / 1.1, rel=0.02)
    assert float(told["ratio_low"]) < float(told["ratio"]) < float(told["ratio_high"])
    assert "confirmed by 5 fresh starts" in told["reason"]

    # Planted: the schema refuses what no service reads.
    broken = judged.read("junit.xml").replace("<properties>", "<verdict/><properties>", 1)
    assert not schema.is_valid(broken)


def test_a_property_without_a_figure_is_left_out():
    found = dict(MetricRow("d", "m", Judgement("m", "no comparable baseline", "none")).properties("cpu", "cpu"))
    assert found["verdict"] == "no comparable baseline"
    assert not {"ratio", "baseline", "p_value"} & found.keys()


def tokens(text):
    return MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)


def rows(text):
    """Cells of every table row, as plain text."""
    found, row = [], None
    for token in tokens(text):
        if token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            found.append(row)
            row = None
        elif token.type == "inline" and row is not None:
            row.append("".join(child.content for child in token.children))
    return found


def test_markdown_is_a_table_of_what_changed_and_a_folded_one_of_what_did_not(judge):
    judged = judge(0.1, "--markdown=@summary.md")
    found = rows(judged.read("summary.md"))
    assert [tuple(row) for row in found if row[0] == "deployment"] == [HEAD, HEAD]
    assert all(len(row) == len(HEAD) for row in found)
    verdicts = [row[5] for row in found]
    assert verdicts[1] == "✗ regression"
    assert verdicts.count("= no change") == len(verdicts) - verdicts.index("= no change")
    assert "--from-results=" in judged.read("summary.md")


NASTY = [
    "<script>alert(1)</script>",
    "a|b",
    "`tick`",
    "*bold* _it_ ~x~",
    "[link](http://x)",
    "back\\slash|",
    "@someone #1",
]


@pytest.mark.parametrize("text", NASTY)
def test_names_are_text_in_markdown(text):
    page = markdown_summary(view([text], 10, slower=0.2, ranks=False, results=Path("/tmp/`odd`|folder")))
    kinds = {child.type for token in tokens(page) if token.type == "inline" for child in token.children}
    assert not kinds & {"html_inline", "link_open", "em_open", "image"}
    named = {row[0] for row in rows(page)} - {"deployment"}
    assert named == {" ".join(text.split())}
    assert {len(row) for row in rows(page)} == {len(HEAD)}


def test_planted_an_unescaped_name_would_be_seen():
    assert plain("<b>") != "<b>"
    assert rows("| a |\n| --- |\n| <b> |")[1] == ["<b>"]
    kinds = {child.type for token in tokens("x <b> y") if token.type == "inline" for child in token.children}
    assert "html_inline" in kinds


@pytest.mark.parametrize("text", ["plain", "with `one`", "``two`` and `"])
def test_a_code_span_holds_any_text(text):
    (span,) = [c for token in tokens(code(text)) if token.type == "inline" for c in token.children]
    assert (span.type, span.content) == ("code_inline", text)


def test_json_lines_are_the_records_and_the_verdicts(judge):
    judged = judge(0.0, "--jsonl=@run.jsonl")
    lines = [json.loads(line) for line in judged.read("run.jsonl").splitlines()]
    records = [StartRecord.from_json(line) for line in lines if line["schema"] == RECORD_SCHEMA]
    assert [record.id for record in records][:2] == ["eagle3-f0", "eagle3-s0"]
    verdicts = {line["key"]: line["verdict"] for line in lines if line["schema"] == "judgement/1"}
    assert verdicts["single_stream/decode_tok_s"] == "no change"
    assert len(records) + len(verdicts) == len(lines)


def test_a_value_that_does_not_exist_is_null_in_json_lines():
    found = Judgement("m", "measurement failed", "nothing was measured")
    (line,) = json_lines(view_from({("d", "m"): found}, [])).splitlines()
    assert json.loads(line, parse_constant=lambda name: pytest.fail(name))["ratio"] is None
    assert json_lines(view_from({}, records_of("d", 2))).count("\n") == 2


def compare(*files):
    return subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def compared(done):
    """The runs that the comparison shows of one test."""
    return re.findall(r"^test_decode_rate\[eagle3-single_stream\] \((\S+)\)", done.stdout, re.MULTILINE)


def test_pytest_benchmark_compares_two_runs(judge, tmp_path):
    first = judge(0.0, "--benchmark-json=@first.json")
    second = judge(0.1, "--benchmark-json=@second.json")
    assert (first.folder, second.code) == (tmp_path, 1)
    done = compare(tmp_path / "first.json", tmp_path / "second.json")
    assert done.returncode == 0, done.stderr
    assert len(compared(done)) == 2

    # Planted: a file that is not one of pytest-benchmark's.
    (tmp_path / "broken.json").write_text('{"benchmarks": [{}]}')
    assert len(compared(compare(tmp_path / "first.json", tmp_path / "broken.json"))) == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--html=@", "is a folder"),
        ("--history=@nowhere", "no such folder"),
        ("--markdown=/proc/none/x.md", "that can be written to"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line(judge, option, said):
    judged = judge(0.0, option)
    assert judged.code in (1, 4)
    assert judged.text.count("Traceback") == 0
    assert said in judged.text
