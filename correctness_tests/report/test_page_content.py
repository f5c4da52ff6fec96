"""What the page says of a run, and what it says where something is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from report_cases import baseline_of, judged, page, records_of, view, view_from

from fixtures.campaign.steps import PARTS
from fixtures.errors import RecordError
from fixtures.gate.drift import ChangePoint, Point
from fixtures.gate.spec import Judgement
from fixtures.records.passes import PassSummary
from fixtures.records.start import PairSide
from fixtures.records.store import write_record
from fixtures.report.history import history_of, read_history
from fixtures.report.page.build import render_page
from fixtures.report.page.sections import acceptance_of, latencies

BYTES = 2_000_000


def section(shown, name):
    return next(each for each in shown.sections if each.id == name)


def views_of(records, baseline, **changes):
    rows = {key: replace(found, **changes) for key, found in judged(records, baseline).items()}
    return view_from(rows, records, baselines={records[0].deployment: baseline}).deployments


def test_a_run_of_fifty_deployments_fits_in_two_megabytes():
    text = render_page(page(view([f"deployment_{n}" for n in range(50)], 20, slower=0.2)))
    assert text.count("<svg ") == 54
    assert len(text.encode()) <= BYTES


def test_starts_of_both_sides_are_shown_around_the_baseline():
    records = records_of("d", 6, slower=0.1)
    baseline = baseline_of(records_of("d", 12, seed=5, name="b"))
    (shown,) = views_of(records, baseline)
    rate = next(row for row in shown.rows if row.key == "single_stream/decode_tok_s")
    assert (len(rate.old), len(rate.new)) == (12, 6)
    assert math.exp(rate.change) == pytest.approx(1.1, rel=0.02)
    assert all(rate.cost(value) > 0.05 for value in rate.new)  # a lower rate is a cost
    assert all(abs(rate.cost(value)) < 0.05 for value in rate.old)


def test_a_baseline_that_was_not_compared_with_is_not_shown():
    records, baseline = records_of("d", 6), baseline_of(records_of("d", 12, name="b"))
    (shown,) = views_of(records, baseline, verdict="no comparable baseline", baseline_value=math.nan)
    assert all(row.old == () for row in shown.rows)


def test_the_other_side_of_start_pairs_stands_as_the_baseline():
    new, old = records_of("d", 3), records_of("d", 3, seed=9, name="o", slower=0.2)
    for record in [*new, *old]:
        record.role, record.against = "paired", "" if record in new else "against main"
        record.pair = PairSide("d", record.index, (), 3)
    found = Judgement("single_stream/ttft_ms", "improvement", "", better="lower", baseline_value=37.0, ratio=0.8)
    (shown,) = view_from({("d", found.key): found}, [*old, *new]).deployments
    row = next(row for row in shown.rows if row.key == found.key)
    assert row.new == tuple(record.metric(found.key).value for record in new)
    assert row.old == tuple(record.metric(found.key).value for record in old)


def test_a_pair_is_what_its_records_say_not_what_was_started_next_to_it():
    """Two deployments against the same other side: each start stands beside the other half of its own pair."""
    metric, records = "single_stream/ttft_ms", []
    for name, others_at in (("d", "2026-01-01T00:40:00Z"), ("e", "2026-01-01T00:00:01Z")):
        new, old = records_of(name, 1), records_of("main", 1, seed=len(records) + 2, name=name)
        for record in (*new, *old):
            record.role, record.pair = "paired", PairSide(name, 0, (), 1)
        old[0].against, old[0].started_at = "against main", others_at
        records += [*new, *old]
    found = Judgement(metric, "improvement", "", better="lower", baseline_value=37.0, ratio=0.8)
    views = view_from({("d", metric): found, ("e", metric): found}, records).deployments
    shown = {each.name: next(row for row in each.rows if row.key == metric).old for each in views}
    assert shown == {"d": (records[1].metric(metric).value,), "e": (records[3].metric(metric).value,)}


def test_what_was_not_measured_is_said_not_drawn():
    shown = page(view(["d"], 1, baselines=False, ranks=False))
    assert shown.forest is None
    assert "--save-baseline" in shown.forest_note
    assert shown.deployments[0].figure is None
    assert render_page(shown).count("--save-baseline=REASON") == 3  # the forest's, the deployment's, the list's
    assert [each.id for each in shown.sections] == ["steps", "acceptance", "approaches", "environment"]


def test_without_pass_counters_there_are_no_steps_and_the_page_says_so():
    records = records_of("d", 2)
    for record in records:
        record.passes, record.workloads = {}, {"single_stream": {"concurrency": 1, "requests": []}}
    shown = page(view_from({}, records))
    assert section(shown, "steps").figures == ()
    assert "pass counters" in section(shown, "steps").notes[0]
    assert "acceptance" not in [each.id for each in shown.sections]


def test_all_reduces_that_were_not_timed_are_not_shown_as_none():
    records = records_of("d", 2)
    for record in records:
        target, draft = record.passes["single_stream"].passes
        record.passes["single_stream"] = PassSummary((replace(target, all_reduce_share=None), draft))
    (step,), (timed,) = view_from({}, records).steps, view_from({}, records_of("d", 2)).steps
    assert step.ms("communication") is None
    assert timed.ms("communication") == pytest.approx(0.62 * 20)
    assert sum(step.ms(part) or 0.0 for part in PARTS) == pytest.approx(sum(map(timed.ms, PARTS)))


def test_a_failed_start_is_named_with_its_last_lines(tmp_path):
    records = records_of("d", 2)
    records[1].status, records[1].log = "measurement failed", ""
    records[1].failure = {"cause": "killed", "message": "the server was killed", "lines": ["out of memory"]}
    shown = page(view_from({}, records, results=tmp_path))
    failed = shown.deployments[0]
    assert "d-s1: the server was killed" in render_page(shown)
    assert failed.log_tail == "out of memory"


def test_the_end_of_the_log_is_shown(tmp_path):
    records = records_of("d", 1)
    path = tmp_path / records[0].log
    path.parent.mkdir()
    path.write_text("".join(f"line {number}\n" for number in range(5000)))
    shown = page(view_from({}, records, results=tmp_path))
    tail = shown.deployments[0].log_tail.splitlines()
    assert tail[-1] == "line 4999"
    assert len(tail) == 12


def test_components_that_starts_disagree_on_show_every_value():
    records = records_of("d", 2)
    records[1].environment = records[1].environment | {"torch": "other"}
    shown = page(view_from({}, records))
    own = dict(row[:2] for row in shown.deployments[0].environment.rows)
    assert own == {"torch": "2.14.1 | other"}
    shared = {row[0] for row in section(shown, "environment").folded[0].rows}
    assert "torch" not in shared
    assert "gpus" in shared


def test_what_blocks_comes_first():
    shown = page(view(["slow", "same"], 12, slower=0.3))
    assert shown.deployments[0].view.name == "slow"
    worst = shown.deployments[0].view.judged[0]
    assert worst.verdict != "no change"
    assert shown.forest.table.rows[0][0].startswith("slow ")


def test_acceptance_counts_passes_that_accepted_this_draft_and_all_before_it():
    (found,) = acceptance_of(records_of("d", 2))
    assert found.passes == 2 * 3 * 12
    assert found.shares == pytest.approx((9 / 12, 7 / 12, 5 / 12))


def test_all_reduce_latencies_are_medians_over_starts_of_medians_over_rounds():
    records = records_of("all_reduce_ring_cpu_2", 3)
    for record, middle in zip(records, (4e-6, 5e-6, 9e-6), strict=True):
        timed = {"backend": "ring", "world_size": 2, "bytes": 1024, "mode": "eager"}
        record.all_reduces = {"w": timed | {"seconds": [1e-6, middle, 1.0]}}
    (found,) = latencies(records)
    assert (found.series, found.nbytes, found.starts) == ("ring, 2 ranks, eager", 1024, 3)
    assert found.us == pytest.approx(5.0)
    records[1].status = "measurement failed"
    assert latencies(records)[0].us == pytest.approx(6.5)


def test_history_marks_where_a_level_changes():
    moments = [records_of("d", n + 1)[-1].started_at for n in range(6)]
    points = [Point(moment, f"run{n}", {"d m": 10.0 if n < 3 else 12.0}) for n, moment in enumerate(moments)]
    found = history_of(points, {"d m": "lower"}, [ChangePoint("d m", "run3", 0.2, 10, 12, True)], {"m": "ms"})
    (track,) = found.deployments["d"]
    assert list(track.changes) == [3]
    assert found.changes == (("d m", "run3", "10", "12", "20 % worse"),)


def test_history_is_read_from_the_folders_below(tmp_path):
    for number in range(3):
        for record in records_of("d", 2, seed=number, name=f"r{number}"):
            record.started_at = record.started_at.replace("2026", f"202{number}")
            write_record(record, tmp_path / f"run{number}")
    found = read_history(tmp_path, {"d"}, {}, None)
    assert found.labels == ("run0", "run1", "run2")
    assert len(found.deployments["d"]) == 12
    assert "3 runs" in found.notes[0]
    assert read_history(tmp_path / "run0", {"d"}, {}, None).deployments == {}
    assert read_history(tmp_path, {"other"}, {}, None).labels == ()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="holds no results folder"):
        read_history(tmp_path / "empty", {"d"}, {}, None)


def test_the_values_of_every_start_are_readable_numbers():
    shown = page(view(["d"], 3, baselines=False))
    rows = {row[0]: row[3].split() for row in shown.deployments[0].values.rows}
    assert rows["single_stream/bytes_per_all_reduce"] == ["43008"] * 3
    assert all(float(value) == pytest.approx(82, rel=0.05) for value in rows["single_stream/decode_tok_s"])
