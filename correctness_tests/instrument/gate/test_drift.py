"""Drift is reported from one value per folder of records or commit of a baseline, and never blocks."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.errors import BaselineError, SuiteError
from fixtures.gate import drift
from fixtures.gate.baselines import write_baseline
from fixtures.gate.saving import baseline_from_records
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import write_record

OTAVA = shutil.which(os.environ.get("OTAVA") or "otava")
needs_otava = pytest.mark.skipif(OTAVA is None, reason=f"Apache Otava is not here: {drift.INSTALL}")


def record(day: int, index: int, rate: float, latency: float, **changes: Any) -> StartRecord:
    fields: dict[str, Any] = {
        "id": f"d{day:02}s{index}",
        "run": f"run{day:02}",
        "box": "cpu",
        "stack": "cpu",
        "deployment": "baseline",
        "role": "stage1",
        "index": index,
        "started_at": f"2026-10-{day + 1:02}T10:{index:02}:00Z",
        "finished_at": f"2026-10-{day + 1:02}T10:{index:02}:30Z",
        "environment": {"machine": "a1", "workload s": "abc"},
        "metrics": [
            Metric("decode_tok_s", rate, "tok/s", "timing", "higher", "s", 64),
            Metric("ttft_ms", latency, "ms", "timing", "lower", "s", 64),
        ],
    }
    return StartRecord(**{**fields, **changes})


def folders(root: Path, days: int = 20, step_at: int = 12, share: float = 0.95) -> list[Path]:
    """A folder of three starts a day; from `step_at` on the decode rate is lower, the latency is not."""
    rng = np.random.default_rng(0)
    made = []
    for day in range(days):
        folder = root / f"run{day:02}"
        factor = share if day >= step_at else 1.0
        for index in range(3):
            rate, latency = 100 * factor * math.exp(rng.normal(0, 0.005)), 10 * math.exp(rng.normal(0, 0.005))
            write_record(record(day, index, rate, latency), folder)
        write_record(record(day, 3, 1.0, 1.0, discarded="first"), folder)
        made.append(folder)
    return made


def test_one_point_per_folder_from_its_usable_starts(tmp_path: Path):
    points, better = drift.points_from_folders(list(reversed(folders(tmp_path, days=6))))
    assert [point.label for point in points] == [f"run{day:02}" for day in range(6)]
    assert better == {"baseline s/decode_tok_s": "higher", "baseline s/ttft_ms": "lower"}
    assert points[0].values["baseline s/decode_tok_s"] == pytest.approx(100, rel=0.01)


@needs_otava
def test_a_step_is_reported_where_it_is_and_does_not_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = [str(folder) for folder in folders(tmp_path)]
    assert drift.main([*given, "--otava", str(OTAVA)]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("baseline s/decode_tok_s")
    assert "worse" in lines[0]
    assert any(f"from run{day}" in lines[0] for day in (11, 12, 13))
    assert lines[1].endswith("1 change points")


@needs_otava
def test_no_step_no_report(tmp_path: Path):
    points, better = drift.points_from_folders(folders(tmp_path, share=1.0))
    assert drift.find_changes(points, better, str(OTAVA)) == []


def test_history_of_a_baseline_is_one_point_per_commit(tmp_path: Path):
    def git(*arguments: str) -> None:
        own = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True, env=clean)

    git("init", "-q")
    path = tmp_path
    for day in range(3):
        made = baseline_from_records([record(day, index, 100.0 + day, 10.0) for index in range(10)], f"day {day}")
        path = write_baseline(made, tmp_path)
        git("add", ".")
        git("commit", "-q", "-m", f"day {day}")
    path.write_text("broken", encoding="utf-8")
    git("commit", "-q", "-a", "-m", "broken")
    told: list[str] = []
    points, better = drift.points_from_history(path, told.append)
    assert len(told) == 1
    assert "left out: " in told[0]
    assert "not JSON" in told[0]
    assert [round(point.values["s/decode_tok_s"]) for point in points] == [100, 101, 102]
    assert better["s/ttft_ms"] == "lower"
    with pytest.raises(BaselineError):
        drift.points_from_history(tmp_path / "nowhere" / "x.json", told.append)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_goes_wrong_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = [str(folder) for folder in folders(tmp_path / "records", days=6)]
    assert drift.main([]) == 2
    assert drift.main([*given, "--otava", str(tmp_path / "missing")]) == 2
    assert drift.main([*given, "--otava", script(tmp_path / "fails", "echo no such test >&2; exit 1")]) == 2
    assert drift.main([*given, "--otava", script(tmp_path / "odd", 'echo "{}"')]) == 2
    assert drift.main([*given[:3], "--otava", script(tmp_path / "fine", "exit 0")]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 5
    assert "pipx install apache-otava" in errors[1]
    assert "no such test" in errors[2]
    assert "not understood" in errors[3]
    assert "3 points are too few" in errors[4]


def test_an_answer_is_read_with_its_direction(tmp_path: Path):
    points, better = drift.points_from_folders(folders(tmp_path, days=6))
    change = {"metric": "m1", "index": 3, "mean_before": "10.0", "mean_after": "9.0"}
    answer = json.dumps({"drift": [{"changes": [change]}]})
    tool = script(tmp_path / "tool", f"echo '{answer}'")
    found = drift.find_changes(points, better, tool)
    assert [str(each) for each in found] == ["baseline s/ttft_ms: 10 -> 9 (-10 %, better) from run03 on"]


def test_series_that_are_not_in_every_point_are_not_looked_at(tmp_path: Path):
    points, better = drift.points_from_folders(folders(tmp_path, days=6))
    alien = [drift.Point(point.time, point.label, {"other": 1.0}) for point in points]
    with pytest.raises(SuiteError, match="no metric is in every point"):
        drift.find_changes([*points, *alien], better, "otava")
