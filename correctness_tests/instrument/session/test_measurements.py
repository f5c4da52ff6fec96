"""How many starts a deployment is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import RecordError
from fixtures.records.start import StartRecord
from fixtures.session import measurements
from fixtures.session.measurements import Measurements, Plan

SUBJECT: Any = SimpleNamespace(name="baseline")


def plan(tmp_path: Path, saving: bool) -> Plan:
    return Plan(
        run="r", box="cpu", stack="cpu", results=tmp_path, starts=10, limit_s=None,
        side=lambda deployment: SimpleNamespace(deployment=deployment), against=lambda deployment: None,
        block_pairs=2, room=2, workloads=lambda deployment: (), saving=saving,
    )  # type: ignore[arg-type, return-value]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str]) -> Any:
    """`series(environments, saving)`: the starts that were measured, given each one's environment."""

    def measured(environments: Iterator[dict[str, Any]], saving: bool) -> list[StartRecord]:
        def measure_start(subject: Any, role: Any, index: int, results: Path, tell: Any) -> StartRecord:
            moment = f"2026-01-01T00:{index:02d}:00.000Z"
            return StartRecord(
                id=f"s{index}", run="r", box="cpu", stack="cpu", deployment="baseline", role=role, index=index,
                started_at=moment, finished_at=moment, environment=next(environments),
            )

        monkeypatch.setattr(measurements, "measure_start", measure_start)
        return Measurements(plan(tmp_path, saving), lambda _, step: told.append(step)).stage1(SUBJECT)

    return measured


def test_a_folder_with_records_of_another_run_is_refused(series: Any, tmp_path: Path) -> None:
    """Pooled, one run's starts would confirm the other's suspicion."""
    (tmp_path / "old.start.json").write_text("{}")
    with pytest.raises(RecordError, match=r"holds the records of another run.*give a new folder"):
        series(iter([{}] * 10), False)


@pytest.mark.parametrize("saving", [False, True])
def test_as_many_starts_as_asked_for(series: Any, told: list[str], saving: bool) -> None:
    assert len(series(iter([{"torch": "2.14.1"}] * 10), saving)) == 10
    assert not any("no baseline" in step for step in told)


def test_starts_of_which_no_baseline_can_be_made_end_the_series(series: Any, told: list[str]) -> None:
    """An update of the driver in the night: the starts after it would be refused, all of them."""
    def changed() -> Iterator[dict[str, Any]]:
        yield from [{"driver": "580"}] * 3 + [{"driver": "590"}] * 7

    assert len(series(changed(), True)) == 4
    assert told[-1] == "no baseline can be saved: s0 and s3 differ in driver: 580 -> 590: save one environment's"
    assert len(series(changed(), False)) == 10


def test_a_reading_in_the_fingerprint_ends_the_series_with_its_first_start(series: Any, told: list[str]) -> None:
    assert len(series(iter([{"gpu temperature": 40 + n} for n in range(10)]), True)) == 1
    assert "no baseline can be saved" in told[-1]
    assert "temperature" in told[-1]
