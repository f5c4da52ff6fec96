"""Start records: written whole or not at all, and read back with a complaint that names the file."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
from pathlib import Path

import pytest

from fixtures.errors import RecordError
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import check_writable, read_record, read_records, write_atomically, write_record
from fixtures.session.recorded import recorded_pairs
from fixtures.shape import plain


def start(**changes) -> StartRecord:
    values = {
        "id": "baseline-20260101T000000-a1b2c3",
        "run": "r",
        "box": "cpu",
        "stack": "cpu",
        "deployment": "baseline",
        "role": "stage1",
        "index": 0,
        "started_at": "2026-01-01T00:00:00.000Z",
        "finished_at": "2026-01-01T00:01:00.000Z",
        "metrics": [Metric("decode_tok_s", 150.5, "tok/s", "timing", "higher", "single_stream", 12)],
    }
    return StartRecord(**(values | changes))


def test_a_record_comes_back_as_it_was(tmp_path):
    record = start(environment={"torch": "2.14.1"}, seconds={"total": 3.5})
    path = write_record(record, tmp_path)
    assert read_record(path) == record
    assert read_record(path).metric("single_stream/decode_tok_s").value == 150.5


def test_a_missing_figure_stays_missing(tmp_path):
    path = write_record(start(metrics=[Metric("ttft_ms", math.nan, "ms", "timing", "lower", "s")]), tmp_path)
    assert "NaN" not in path.read_text()
    assert math.isnan(read_record(path).metrics[0].value)
    assert not read_record(path).metrics[0].usable


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    metric = Metric("ttft_ms", 5.0, "ms", "timing", "higher", "s")
    with pytest.raises(RecordError, match="metrics/0/better = 'higher'"):
        write_record(start(metrics=[metric]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_records_are_read_oldest_first(tmp_path):
    write_record(start(id="b", started_at="2026-01-02T00:00:00.000Z"), tmp_path / "later")
    write_record(start(id="a", started_at="2026-01-01T00:00:00.000Z"), tmp_path)
    assert [record.id for record in read_records(tmp_path)] == ["a", "b"]


OLD = Path(__file__).with_name("start_record_1.jsonl")
"""Both sides of a start pair and the other side's discarded first start, as the suite wrote them before."""
REAL = Path(__file__).parents[2] / "report" / "cpu_run.jsonl.gz"
"""A run on a machine without a GPU, of the same age."""


def as_old(data):
    new = ("log", "ready_s", "faults", "against", "pair")
    return {key: value for key, value in data.items() if key not in new} | {"schema": "start-record/1"}


def old_folder(folder, text):
    for line in text.splitlines():
        (folder / f"{json.loads(line)['id']}.start.json").write_text(line)
    return folder


def test_records_of_the_old_schema_are_read_with_all_they_hold(tmp_path):
    records = {record.id: record for record in read_records(old_folder(tmp_path, OLD.read_text()))}
    other, new, first = records["p00"], records["p01"], records["prime0"]
    assert (other.against, new.against, first.against) == ("against HEAD", "", "against HEAD")
    assert (other.side, new.side, first.side) == ("against HEAD", "candidate", "against HEAD")
    assert (other.faults, new.faults) == ((), ("slow-pass-20",))
    assert (new.log, new.ready_s, first.log) == ("p01/server.log", 12.5, "prime0/server.log")
    assert first.pair is None
    for record in (other, new):
        assert (record.pair.of, record.pair.index, record.pair.stage1) == ("baseline", 0, 3)
        assert record.pair.order == (False, True, True, False)
        assert [block.workload for block in record.pair.blocks] == ["single_stream"] * 4
        assert len({block.metrics[0].value for block in record.pair.blocks}) == 4
    found = recorded_pairs([other, new], "baseline")
    old_rates, new_rates = found[0].blocks["single_stream/decode_tok_s"]
    assert (len(old_rates), len(new_rates)) == (4, 4)
    assert max(new_rates) < min(old_rates)


def test_a_real_run_of_the_old_schema_keeps_its_passes_and_is_written_as_today(tmp_path):
    lines = gzip.decompress(REAL.read_bytes()).decode()
    for record in read_records(old_folder(tmp_path, lines)):
        (was,) = [each for each in map(json.loads, lines.splitlines()) if each["id"] == record.id]
        assert plain(record.passes) == was["passes"]
        assert (record.log, record.ready_s, list(record.faults)) == tuple(
            was["server"][key] for key in ("log", "ready_s", "faults")
        )
        assert read_record(write_record(record, tmp_path / "new")) == record


def break_text(text: str, fault: str) -> str:
    data = json.loads(text)
    match fault:
        case "half a file":
            return text[: len(text) // 2]
        case "no JSON":
            return "\n\nnot json"
        case "NaN":
            return text.replace("150.5", "NaN")
        case "unknown key":
            data["surprise"] = 1
        case "wrong type":
            data["index"] = "first"
        case "unknown role":
            data["role"] = "stage9"
        case "unknown kind":
            data["metrics"][0]["kind"] = "guess"
        case "no metrics":
            del data["metrics"]
        case "a later schema":
            data["schema"] = "start-record/99"
        case "nested too deeply":
            return "[" * 100_000
        case "too large":
            data["metrics"][0]["value"] = 10**400
        case "passes that are none":
            data["passes"] = {"single_stream": [1]}
        case "a workload without requests":
            data["workloads"] = {"single_stream": {}}
        case "passes of no count":
            row = {"role": "target", "mode": "decode", "count": 1, "median_s": 0.1, "all_reduces": {"many": 1},
                   "tokens": 1, "total_s": 0.1, "bytes": [], "all_reduce_share": None}
            data["passes"] = {"single_stream": {"passes": [row], "sites": {}, "faults": []}}
        case "a pair without an order":
            data["pair"] = {"of": "baseline", "index": 0, "stage1": 3, "blocks": []}
        case "an old pair that is no table":
            data = as_old(data) | {"server": {"pair": "first", "blocks": 3}}
        case "an old pair without blocks":
            data = as_old(data) | {"server": {"pair": {"of": "baseline"}}}
        case "an old record without a server":
            data = as_old(data) | {"server": None}
        case "ranks without what they timed":
            data["configuration"] = {"requested": {"all_reduce": "gloo", "device": "cpu", "world_size": 2}}
        case "a request that is no table":
            data["configuration"] = {"requested": None}
        case "an all-reduce without times":
            data["all_reduces"] = {"x": {"backend": "g", "world_size": 2, "bytes": 8, "mode": "eager", "seconds": []}}
        case "failed without a failure":
            data["status"] = "measurement failed"
    return json.dumps(data)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("half a file", "not JSON"),
        ("no JSON", ":3: not JSON"),
        ("NaN", "NaN is no JSON number"),
        ("unknown key", "surprise"),
        ("wrong type", "index"),
        ("unknown role", "stage9"),
        ("unknown kind", "guess"),
        ("no metrics", "metrics"),
        ("a later schema", "start-record"),
        ("failed without a failure", "failure"),
        ("nested too deeply", "nested too deeply"),
        ("too large", "too large a number"),
        ("passes that are none", "passes/single_stream"),
        ("a workload without requests", "workloads/single_stream"),
        ("passes of no count", "passes/single_stream/passes/0/all_reduces"),
        ("a pair without an order", "pair: 'order' is a required property"),
        ("an old pair that is no table", "pair"),
        ("an old pair without blocks", "pair: 'index' is a required property"),
        ("an old record without a server", "start-record/1"),
        ("ranks without what they timed", "timed"),
        ("a request that is no table", "configuration/requested"),
        ("an all-reduce without times", "all_reduces/x/seconds"),
    ],
)
def test_a_damaged_record_is_one_line_with_the_file(tmp_path, fault, named):
    path = write_record(start(), tmp_path)
    path.write_text(break_text(path.read_text(), fault))
    with pytest.raises(RecordError) as caught:
        read_record(path)
    message = str(caught.value)
    assert path.name in message
    assert named in message
    assert message.endswith(("remove the file or restore it", "use the suite that wrote it"))
    assert "\n" not in message


def test_bytes_and_folders_are_one_line_too(tmp_path):
    (tmp_path / "bytes.start.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "folder.start.json").mkdir()
    for name, said in (("bytes", "not UTF-8 text"), ("folder", "cannot be read")):
        with pytest.raises(RecordError, match=rf"{name}\.start\.json: {said}.*remove the file or restore it"):
            read_record(tmp_path / f"{name}.start.json")


def test_an_empty_folder_is_no_evidence(tmp_path):
    with pytest.raises(RecordError, match="holds no start records"):
        read_records(tmp_path)
    with pytest.raises(RecordError, match="no such folder"):
        read_records(tmp_path / "missing")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "kept.start.json"
    write_atomically(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="disk is full: free some space or give another folder with --results"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_is_a_file_is_told_at_once(tmp_path):
    (tmp_path / "results").write_text("in the way")
    with pytest.raises(RecordError, match="give a writable folder with --results"):
        check_writable(tmp_path / "results")


def test_a_crash_between_write_and_rename_leaves_no_half_record(tmp_path, monkeypatch):
    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(Crash):
        write_record(start(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"value": "fast"}, {"value": True}, {"value": ...}, {"samples": -1}, {"samples": 1.5}, {"samples": True},
        {"unit": 3}, {"kind": "guess"}, {"name": ""}, {"extra": 1}, {"workload": ...},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_metric_is_refused_however_many_like_it_were_good(tmp_path, change):
    """Metrics that differ only in their figures are checked once."""
    metric = start().to_json()["metrics"][0]
    bad = {key: value for key, value in (metric | change).items() if value is not ...}
    path = tmp_path / "x.start.json"
    for value in (1.0, 2.0, None):
        path.write_text(json.dumps(start().to_json() | {"metrics": [metric | {"value": value}]}))
        read_record(path)
    path.write_text(json.dumps(start().to_json() | {"metrics": [metric, metric, bad]}))
    with pytest.raises(RecordError, match=r"x\.start\.json: metrics/2"):
        read_record(path)
