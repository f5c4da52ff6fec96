"""Drift is reported from one value per folder of records, and never blocks."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.errors import SuiteError
from fixtures.gate import drift
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
def test_a_step_is_reported_where_it_is(tmp_path: Path):
    points, better = drift.points_from_folders(folders(tmp_path))
    (found,) = drift.find_changes(points, better, OTAVA)
    assert str(found).startswith("baseline s/decode_tok_s")
    assert found.worse
    assert found.label in ("run11", "run12", "run13")


@needs_otava
def test_no_step_no_report(tmp_path: Path):
    points, better = drift.points_from_folders(folders(tmp_path, share=1.0))
    assert drift.find_changes(points, better, OTAVA) == []


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("days", "tool", "said"),
    [
        (6, None, "pipx install apache-otava"),
        (6, "echo no such test >&2; exit 1", "no such test"),
        (6, 'echo "{}"', "not understood"),
        (3, "exit 0", "3 points are too few"),
    ],
)
def test_what_goes_wrong_is_one_line(
    days: int, tool: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    points, better = drift.points_from_folders(folders(tmp_path / "records", days=days))
    command = str(tmp_path / "missing") if tool is None else script(tmp_path / "tool", tool)
    monkeypatch.setenv("OTAVA", command)
    with pytest.raises(SuiteError, match=said) as caught:
        drift.find_changes(points, better, None)
    assert "\n" not in str(caught.value)


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
