"""From the sampler's lines to what a record keeps: which samples are of a workload, and that it stays small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.shape import columns, made
from fixtures.weather.series import NAMES, NOT_SEEN, POINTS, Weather, Window, read_samples, weather_of


def line(at: float, over: float = 1.0, **more: Any) -> dict[str, Any]:
    readings = {key.replace("__", "/"): value for key, value in more.pop("readings", {}).items()}
    return {"t": at, "over": over, "readings": readings, **more}


def counted(busy: float, own: float, foreign: float) -> dict[str, float]:
    return {"busy_cores": busy, "own_cores": own, "foreign_cores": foreign}


def loads(*windows: tuple[float, float]) -> tuple[int, float, float]:
    samples = [line(float(at), readings={"load": float(at)}) for at in range(1, 21)]
    found = weather_of(samples, {"w": [Window(*each) for each in windows]})
    assert found is not None
    here = found.workloads["w"]
    return here.samples, here.summary["load"].least, here.summary["load"].most


def test_a_sample_is_of_the_workload_that_had_most_of_its_time() -> None:
    assert loads((4.4, 9.6)) == (6, 5, 10), "0.6 of the first's second are in it, and of the last's"
    assert loads((4.6, 9.4)) == (4, 6, 9)
    assert loads((2.0, 4.0), (10.0, 12.0)) == (4, 3, 12), "blocks of one workload"
    assert loads((7.1, 7.3)) == (1, 8, 8), "one that is shorter than a sample has the one that it was in"


def test_a_workload_outside_all_samples_has_none() -> None:
    found = weather_of([line(1.0, readings={"load": 1.0})], {"w": [Window(50.0, 60.0)]})
    assert found is not None
    assert found.workloads["w"].samples == 0
    assert weather_of([], {"w": [Window(1, 2)]}) is None


def test_foreign_work_is_named_and_what_no_process_shows_is_told() -> None:
    samples = [
        line(2.0, scan_s=2.0, foreign={"hog": 0.5}, readings=counted(2.0, 1.0, 0.5)),
        line(3.0),
        line(4.0, scan_s=2.0, foreign={"hog": 0.1}, readings=counted(2.0, 1.4, 0.1)),
    ]
    found = weather_of(samples, {"w": [Window(0.0, 4.0)]})
    assert found is not None
    assert found.workloads["w"].foreign == pytest.approx({"hog": 0.3, NOT_SEEN: 0.5})
    assert found.workloads["w"].summary["foreign_cores"].mean == pytest.approx(0.3)


def test_what_two_ways_of_counting_differ_by_is_no_foreign_work() -> None:
    found = weather_of([line(2.0, scan_s=1.0, readings=counted(2.0, 1.85, 0.0))], {"w": [Window(1.0, 2.0)]})
    assert found is not None
    assert found.workloads["w"].foreign == {}


def test_throttle_reasons_are_shares_of_the_samples_by_gpu() -> None:
    samples = [line(float(at), readings={"gpu1__reasons": 0x24 if at < 2 else 0x4}) for at in range(1, 5)]
    found = weather_of(samples, {"w": [Window(0.0, 4.0)]})
    assert found is not None
    assert found.workloads["w"].reasons == {"GPU 1": {"0x4": 1.0, "0x20": 0.25}}


def test_a_foreign_process_counts_where_it_was_there_for_half_of_the_time() -> None:
    def samples(there: int) -> list[dict[str, Any]]:
        held = [{"gpu_foreign": {"gpu0/python (7)": 3000.0}} if at < there else {} for at in range(10)]
        return [line(float(at), readings={"gpu0__celsius": 60.0}, **each) for at, each in enumerate(held)]

    for there, seen in ((4, {}), (5, {"gpu0/python (7)": 3000.0})):
        found = weather_of(samples(there), {"w": [Window(-1.0, 10.0)]})
        assert found is not None
        assert found.workloads["w"].gpu_foreign == seen


def test_an_hour_of_eight_gpus_stays_small_and_comes_back_as_it_was() -> None:
    readings = {f"gpu{card}__{name}": 1.0 for card in range(8) for name in ("sm_mhz", "watts", "celsius", "link_width")}
    samples = [
        line(
            float(at), scan_s=1.0, foreign={f"process {each}": 0.1 for each in range(40)},
            readings=readings | {"gpu0__watts": float(at % 60), **counted(4.0, 0.0, 4.0)},
            absent={"replays": "Function Not Found"} if at == 0 else {},
        )
        for at in range(3600)
    ]  # fmt: skip
    found = weather_of(samples, {"w": [Window(0.0, 3600.0)]})
    assert found is not None
    here = found.workloads["w"]
    assert len(here.series["gpu0/watts"]) == POINTS
    assert {*here.series} == {"gpu0/watts"}, "what does not change has no series"
    assert len(here.foreign) == NAMES
    assert found.absent == {"replays": "Function Not Found"}
    text = json.dumps(columns(found))
    assert len(text) < 8000
    assert made(Weather, json.loads(text)) == found


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "weather.jsonl"
    path.write_text(json.dumps(line(1.0)) + "\n" + '{"t": 2.0, "ov')
    assert [each["t"] for each in read_samples(path)] == [1.0]
    assert read_samples(tmp_path / "none") == []
