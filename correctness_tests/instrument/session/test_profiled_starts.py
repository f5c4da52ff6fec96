"""When a start is profiled, and that a profile that fails is a note in its record."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.deployments import load_box
from fixtures.profile.figures import Profile
from fixtures.records.start import StartRecord, utc_now
from fixtures.records.store import read_record, write_record
from fixtures.serving import profiling
from fixtures.serving.readiness import Reply
from fixtures.serving.workloads import load_workload
from fixtures.session import measurements
from fixtures.session.measurements import Measurements, Plan
from fixtures.session.profiling import folder_of, profile_into

SUBJECT: Any = SimpleNamespace(name="baseline")
PROFILE = Profile("DECODE", 1, 8, 1, True, {"GEMM": 3}, {}, (), (), {}, ())


def record(index: int = 0) -> StartRecord:
    return StartRecord(f"s{index}", "r", "cpu", "cpu", "baseline", "stage1", index, utc_now(), utc_now())


@pytest.mark.parametrize(
    ("when", "made", "profiled"),
    [
        ("first", ["profile", "", ""], [True, False, False]),
        ("first", ["discarded", "profile", ""], [True, True, False]),
        ("first", ["note", "", ""], [True, False, False]),
        ("all", ["profile", "profile", "profile"], [True, True, True]),
        ("none", ["", "", ""], [False, False, False]),
    ],
)
def test_which_starts_of_a_deployment_are_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Any, made: list[str], profiled: list[bool]
) -> None:
    """The first one that counts, all, or none; what could not be profiled once is not tried in every start."""
    seen: list[bool] = []
    given: Iterator[str] = iter([*made, "", ""])

    def measure_start(subject: Any, role: Any, index: int, results: Path, tell: Any) -> StartRecord:
        seen.append(subject.profiled)
        found, what = record(index), next(given)
        found.profile = PROFILE if what in ("profile", "discarded") else None
        found.profile_note = "no profile: planted" if what == "note" else ""
        found.discarded = "something was compiled in it: planted" if what == "discarded" else None
        return found

    monkeypatch.setattr(measurements, "measure_start", measure_start)
    plan = Plan(
        "r", "cpu", "cpu", tmp_path, 3, None, lambda each: each, lambda each: each, 2, 2, lambda each: (), profile=when
    )  # type: ignore[arg-type, return-value]
    Measurements(plan, lambda *_: None).stage1(SUBJECT)
    assert seen[:3] == profiled


@pytest.mark.parametrize(("release", "steps"), [("0.5.23", 9), ("0.5.10.post1", 10)])
def test_each_release_is_asked_in_its_own_counting(tmp_path: Path, release: str, steps: int) -> None:
    """Eight decode passes and a prefill: the older release counts the pass that ends the profile."""
    box = load_box("cpu").deployments["tp2"]
    asked = profiling.profile_request(box, release, tmp_path, 9)
    assert (asked["num_steps"], asked["activities"]) == (steps, ["CPU"])
    gpu = replace(box, options={**box.options, "device": "cuda"})
    assert profiling.profile_request(gpu, release, tmp_path, 9)["activities"] == ["CPU", "GPU"]


class Scripted:
    """Stands in for a server's HTTP side; `trace`: what its profiler writes, nothing for None."""

    name, port, release, log_path = "scripted", 1, "0.5.23", Path("server.log")
    guarded = SimpleNamespace(running=True)

    def __init__(self, status: int, trace: bytes | None) -> None:
        self.status, self.trace = status, trace
        self.asked: list[str] = []
        self.folder = Path()

    def request(self, port: int, path: str, *, timeout_s: float, sent: Any) -> Reply:
        self.asked.append(path)
        if path == "/start_profile":
            self.folder = Path(sent["output_dir"])
        if path == "/generate" and self.trace is not None:
            (self.folder / "1.5-TP-0.trace.json.gz").write_bytes(self.trace)
        return Reply(self.status, b"planted answer")


def traced(end: int) -> bytes:
    """A trace of a prefill and three decode passes, the first `end` bytes of it."""
    events: list[dict[str, Any]] = []
    for index, name in enumerate(["step[EXTEND bs=1 toks=4]", *["step[DECODE bs=1]"] * 3]):
        start = 1000.0 * index
        events.append({"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": 500, "pid": 1, "tid": 7})
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": start + at, "dur": 50, "pid": 1, "tid": 7}
            for at in (10, 100)
        ]
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())[:end]


@pytest.mark.parametrize(
    ("status", "trace", "note"),
    [
        (200, traced(1 << 20), ""),
        (500, None, "no profile: scripted: /start_profile answered 500: planted answer"),
        (200, None, "no profile: scripted: the profiler wrote no trace (log: server.log)"),
        (200, traced(60), "no profile: .*cut off: the compressed file ends early: take the profile again"),
        (200, b"", "no profile: .*empty"),
    ],
    ids=["whole", "refused", "nothing", "cut off", "empty"],
)
def test_a_profile_that_fails_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, trace: bytes | None, note: str
) -> None:
    server: Any = Scripted(status, trace)
    monkeypatch.setattr(profiling, "request", server.request)
    monkeypatch.setattr(profiling, "_WRITTEN_S", 0.1)
    found, workload = record(), load_workload("single_stream", "cpu")
    profile_into(found, server, load_box("cpu").deployments["baseline"], [workload], tmp_path)
    assert found.status == "ok"
    assert "\n" not in found.profile_note
    if note:
        assert found.profile is None
        pattern = note if ".*" in note else note.replace("(", r"\(").replace(")", r"\)")
        assert re.fullmatch(f"{pattern}.*", found.profile_note), found.profile_note
    else:
        assert found.profile is not None
        assert (found.profile.kind, found.profile.passes, found.profile.counts) == ("DECODE", 3, {"GEMM": 2})
        assert list(folder_of(found, tmp_path).iterdir())
    assert ("/stop_profile" in server.asked) == (status == 200 and trace is None)
    write_record(found, tmp_path)
    assert read_record(tmp_path / "s0.start.json").profile == found.profile


def test_without_a_workload_of_one_request_there_is_none(tmp_path: Path) -> None:
    found, server = record(), Scripted(200, None)
    workload, box = load_workload("concurrency_8", "cpu"), load_box("cpu").deployments["baseline"]
    profile_into(found, server, box, [workload], tmp_path)  # type: ignore[arg-type]
    assert found.profile_note == "no profile: no workload of one request at a time was served"
    assert not server.asked


def test_traces_that_are_too_large_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = Scripted(200, traced(1 << 20))
    monkeypatch.setattr(profiling, "request", server.request)
    monkeypatch.setattr("fixtures.session.profiling._MOST_BYTES", 10)
    found, workload = record(), load_workload("single_stream", "cpu")
    profile_into(found, server, load_box("cpu").deployments["baseline"], [workload], tmp_path)
    assert found.profile is not None
    assert "were not kept" in found.profile_note
    assert not list(folder_of(found, tmp_path).iterdir())
