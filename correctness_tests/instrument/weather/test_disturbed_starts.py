"""What a disturbed start does to a record, a verdict, a night and a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weather_cases import here, start, weather

from fixtures.campaign.compare_stacks import compare_stacks, side
from fixtures.campaign.compare_stacks_text import render
from fixtures.errors import MeasurementFailed
from fixtures.gate.paired import MeasuredPair
from fixtures.gate.question import Question, budget
from fixtures.night.answers import finished_of
from fixtures.night.schedule import begin, finished, next_start
from fixtures.night.spec import NightArm, NightSpec, NightStart, Takes
from fixtures.records.metric import Metric
from fixtures.records.start import NightPlace, StartRecord, disturbed_starts, weather_between
from fixtures.records.store import read_record, write_record
from fixtures.report.doubts import doubts
from fixtures.serving.client_results import ClientCost, WorkloadResult
from fixtures.session.measure_start import not_counted, written
from fixtures.session.served import watched
from fixtures.weather.series import SAMPLES, Weather

HOGGED = weather(replace(here(foreign_cores=0.9), foreign={"hog": 0.9}))
SLOWER = weather(here(gpu0__sm_mhz=2180.0, gpu0__celsius=84.0))
RATE = "single_stream/decode_tok_s"


def rated(index: int, rate: float, found: Weather | None, **changes: Any) -> StartRecord:
    metric = Metric("decode_tok_s", rate, "tok/s", "timing", "higher", "single_stream", 12)
    record = start(index, found, metrics=[metric], **changes)
    record.discarded = not_counted(record, [])
    return record


def test_a_record_keeps_its_weather_and_tells_what_disturbed_it(tmp_path: Path) -> None:
    record = start(0, HOGGED)
    back = read_record(write_record(record, tmp_path))
    assert back == record
    assert [each.kind for each in back.disturbed] == ["foreign CPU work"]


def test_a_record_without_weather_is_read_and_undisturbed(tmp_path: Path) -> None:
    path = write_record(start(0, weather()), tmp_path)
    told = json.loads(path.read_text())
    del told["weather"]
    path.write_text(json.dumps(told))
    assert read_record(path).weather is None
    assert read_record(path).disturbed == ()


def test_the_clients_own_lag_is_part_of_the_weather_of_a_block_too(tmp_path: Path) -> None:
    record = start(0)
    with watched(record, server_of(tmp_path / "s", GONE[:1])) as ended:
        for lag_ms in (5.0, 1400.0, 6.0):
            ended(WorkloadResult("single_stream", 1, (), 1.0, 0, client=ClientCost(lag_max_ms=lag_ms)))
    assert [each.text for each in record.disturbed] == ["the client stood still for 1.4 s, in single_stream"]


def test_only_starts_of_the_same_run_say_what_is_usual() -> None:
    before = [start(index, HOGGED) for index in range(4)]
    assert not_counted(start(4, HOGGED), before) is None
    for each in before:
        each.run = "another night"
    assert not_counted(start(4, HOGGED), before) is not None


def test_a_disturbed_start_is_no_evidence_and_a_verdict_without_others_says_by_what() -> None:
    disturbed = [rated(index, 40.0, HOGGED) for index in range(2)]
    assert disturbed_starts([*disturbed, rated(2, 100.0, weather())]) == "2 of 3 starts disturbed by foreign CPU work"
    found = Question("baseline", RATE).answer(disturbed, (), share=0.01)
    assert found.verdict == "too noisy to tell"
    assert found.reason.endswith("2 of 2 starts disturbed by foreign CPU work")
    with_others = [*disturbed, *(rated(index, 100.0, weather()) for index in range(2, 7))]
    assert Question("baseline", RATE).answer(with_others, (), share=0.01).candidate_starts == 5


def test_start_pairs_that_were_all_disturbed_say_so() -> None:
    pair = MeasuredPair((rated(0, 90.0, HOGGED), rated(1, 40.0, HOGGED)), {RATE: ([90.0], [40.0])}, (False,))
    found = Question("baseline", RATE, "other side").answer([pair], (), share=0.01)
    assert found.verdict == "too noisy to tell"
    assert "1 of 1 starts disturbed by foreign CPU work" in found.reason


def test_a_verdict_names_the_weather_that_differs_and_nothing_else() -> None:
    old, new = ([rated(index, 100.0, each) for index in range(3)] for each in (weather(), SLOWER))
    told = "; weather: GPU 0 SM clock 2,430 → 2,180 MHz, GPU 0 temperature 61 → 84 °C"
    assert weather_between(old, new, RATE) == told
    assert weather_between(old, old, RATE) == ""
    assert weather_between(old, new, "other/decode_tok_s") == ""
    mixed = [*new[:2], old[0]]
    assert weather_between(old, mixed, RATE) == "", "a reading between the other side's explains nothing"


def test_a_comparison_of_two_runs_lists_it_by_deployment() -> None:
    old, new = (
        side("cpu", [rated(index, 100.0, each, deployment=name) for index in range(3) for name in ("baseline", "tp2")])
        for each in (weather(), SLOWER)
    )
    text = render(compare_stacks(old, new, {}, budget(())))
    assert "Weather that differs\n  baseline: GPU 0 SM clock 2,430 → 2,180 MHz, GPU 0 temperature 61 → 84 °C" in text
    assert "\n  tp2: GPU 0 SM clock" in text
    assert "Weather" not in render(compare_stacks(old, old, {}, budget(())))


def test_the_table_of_doubts_names_each_disturbed_start_and_whether_it_counts() -> None:
    told = list(doubts([rated(0, 40.0, HOGGED), start(1, HOGGED), start(2, weather())]))
    assert len(told) == 2
    assert "start 1 was disturbed (no evidence): foreign processes took 45% of 2 cores (hog 0.9)" in told[0]
    assert "start 2 was disturbed (it counts, since most starts are)" in told[1]


TAKES = Takes(60, 20, 60)
SPEC = NightSpec(NightArm("control", TAKES), (NightArm("arm", TAKES, 0.5),), {RATE: "higher"})


def placed_start(step: NightStart, found: Weather) -> StartRecord:
    place = NightPlace("control", 1, step.number, step.round, "headline", step.order)
    return rated(step.number, 100.0, found, deployment=step.deployment, night=place)


def test_the_night_makes_a_disturbed_start_again_in_its_round_once() -> None:
    night, names = begin(SPEC), list[str]()
    for _ in range(20):
        step = next_start(night, 0.0)
        assert isinstance(step, NightStart)
        if step.round > 1:
            break
        names.append(step.deployment)
        record = placed_start(step, HOGGED if step.deployment == "arm" else weather())
        night = finished(night, finished_of(record, SPEC.headline, record.started_at))
    assert names.count("arm") == 2
    assert names.count("control") == 2
    assert not any(each.observation and each.observation.arm == "arm" for each in night.finished)


def server_of(folder: Path, lines: list[dict[str, Any]]) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / SAMPLES).write_text("".join(json.dumps(each) + "\n" for each in lines))
    return SimpleNamespace(name="baseline", log_path=folder / "server.log")


GONE = [{"t": 1.0, "over": 1.0, "readings": {}, "cores": 2}, {"t": 2.0, "over": 1.0, "readings": {}, "gone": ["GPU 3"]}]


@pytest.mark.parametrize("fails", [False, True])
def test_a_gpu_that_vanishes_is_the_cause_whatever_else_fails(tmp_path: Path, fails: bool) -> None:
    record = start(0)

    def measure() -> None:
        with watched(record, server_of(tmp_path / "s", GONE)):
            if fails:
                raise MeasurementFailed("the connection was closed", "connection")

    written(record, tmp_path, measure)
    assert record.status == "measurement failed"
    assert record.failure is not None
    assert record.failure["message"].startswith("baseline: GPU 3 is gone")
    assert ("the connection was closed" in record.failure["message"]) is fails
    assert record.weather is not None
    assert record.weather.gone == ["GPU 3"]
    assert not (tmp_path / "s" / SAMPLES).exists(), "the record has it"


def test_tokens_that_came_in_bunches_are_weather_where_the_weather_says_so(tmp_path: Path) -> None:
    for found, status in ((HOGGED, "ok"), (weather(), "measurement failed")):
        record = start(0, found)

        def measure() -> None:
            raise MeasurementFailed("6 of 10 requests are no evidence", "bunched")

        written(record, tmp_path, measure)
        assert record.status == status
        assert not record.usable
