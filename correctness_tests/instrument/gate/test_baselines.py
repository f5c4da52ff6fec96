"""Baseline files: read with a clear complaint, written whole, and never made from starts that are no set."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import BaselineError
from fixtures.gate.baselines import Baseline, baseline_path, load_baseline, write_baseline
from fixtures.gate.decide import decide
from fixtures.gate.saving import baseline_from_records
from fixtures.gate.spec import Judgement, MetricSpec
from fixtures.records.components import differing
from fixtures.records.metric import Metric
from fixtures.records.start import NightPlace, StartRecord

BASELINES = Path(__file__).parents[3] / "baselines"
KEY = "single_stream/decode_tok_s"


def record(index: int, value: float = 100.0, **changes: Any) -> StartRecord:
    metric = Metric("decode_tok_s", value, "tok/s", "timing", "higher", "single_stream", 64)
    count = Metric("kv_tokens", 20000, "tokens", "exact", "higher")
    fields: dict[str, Any] = {
        "id": f"s{index:02}",
        "run": "r",
        "box": "cpu",
        "stack": "cpu",
        "deployment": "baseline",
        "role": "stage1",
        "index": index,
        "started_at": f"2026-11-29T10:{index:02}:00Z",
        "environment": {"machine": "a1", "torch": "2.14.1", "workload single_stream": "abc"},
        "configuration": {"requested": {"options": {"random_seed": 1}}},
        "metrics": [metric, count],
    }
    return StartRecord(**{**fields, **changes})


def ten(**changes: Any) -> list[StartRecord]:
    return [record(index, 100 + index / 10, **changes) for index in range(10)]


def test_round_trip(tmp_path: Path):
    made = baseline_from_records(ten(), "first", saved_at="2026-11-29T12:00:00Z")
    path = write_baseline(made, tmp_path)
    assert path == baseline_path(tmp_path, "cpu", "cpu", "baseline")
    read = load_baseline(path)
    assert read == made
    assert read.workloads == {"single_stream": "abc"}
    assert read.age_days(datetime(2026, 12, 1, 12, tzinfo=UTC)) == pytest.approx(2)
    given = read.metrics[KEY].given()
    assert len(given.values) == len(given.ids) == 10
    found = decide(read.metrics[KEY].spec(), given, [100.0, 100.5, 99.9, 100.2, 100.3])
    assert found.verdict == "no change"
    assert not list(path.parent.glob(".*"))


def test_the_new_set_replaces_the_old_one_as_a_whole(tmp_path: Path):
    """No best-of: a slower set that was accepted is what later runs are compared with."""
    write_baseline(baseline_from_records(ten(), "first"), tmp_path)
    slower = [record(index + 20, 95.0 + index / 10) for index in range(10)]
    path = write_baseline(baseline_from_records(slower, "the price of a fix"), tmp_path)
    read = load_baseline(path)
    assert read.metrics[KEY].starts == tuple(each.metrics[0].value for each in slower)
    assert read.starts == tuple(each.id for each in slower)
    assert read.reason == "the price of a fix"


def best_of(records: list[StartRecord], old: Baseline) -> Baseline:
    """The ratchet that raises false alarms: keep the better value of each start."""
    made = baseline_from_records(records, "ratchet")
    both = zip(made.metrics[KEY].starts, old.metrics[KEY].starts, strict=True)
    best = replace(made.metrics[KEY], starts=tuple(max(pair) for pair in both))
    return replace(made, metrics={**made.metrics, KEY: best})


def test_a_ratchet_would_be_seen():
    old = baseline_from_records(ten(), "first")
    new = [record(index + 20, 110.0 - 2 * index) for index in range(10)]
    honest = baseline_from_records(new, "second")
    assert honest.metrics[KEY].starts == tuple(each.metrics[0].value for each in new)
    assert best_of(new, old).metrics[KEY].starts != honest.metrics[KEY].starts


def alarm(verdict: str = "regression", **more: Any) -> Judgement:
    return Judgement(KEY, verdict, "x", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: baseline_from_records(ten(), " "), "reason"),
        (lambda: baseline_from_records(ten(), "x", judgements=[alarm()]), "open alarm (regression)"),
        (lambda: baseline_from_records(ten(), "x", judgements=[alarm("measurement failed")]), "open alarm"),
        (
            lambda: baseline_from_records(ten(), "x", judgements=[alarm("too noisy to tell", needs_confirmation=True)]),
            "not confirmed",
        ),
        (lambda: baseline_from_records(ten()[:9], "x"), "9 starts under all workloads are too few"),
        (lambda: baseline_from_records([], "x"), "no start"),
        (lambda: baseline_from_records(ten(discarded="first"), "x"), "discarded"),
        (lambda: baseline_from_records(ten(role="paired"), "x"), "no start"),
        (lambda: baseline_from_records([*ten(), record(11, deployment="eagle3")], "x"), "cpu/cpu/eagle3"),
        (lambda: baseline_from_records([*ten(), record(11, status="measurement failed")], "x"), "s11 failed"),
        (lambda: baseline_from_records([*ten(), record(9)], "x"), "given twice"),
        (
            lambda: baseline_from_records([*ten(), record(11, environment={"machine": "b2"})], "x"),
            "differ in machine: a1 -> b2",
        ),
        (lambda: baseline_from_records(ten(environment={"clock MHz": 3}), "x"), "clock MHz"),
        (lambda: baseline_from_records(ten(environment={}), "x"), "environment"),
        (lambda: baseline_from_records(ten(metrics=[]), "x"), "no metrics"),
        (lambda: baseline_from_records([*ten(), record(11, math.nan)], "x"), "s11: single_stream/decode_tok_s"),
        (lambda: baseline_from_records([*ten(), record(11, 0.0)], "x"), "must be above zero"),
        (lambda: baseline_from_records([*ten(), record(11, metrics=[record(1).metrics[0]])], "x"), "kv_tokens"),
    ],
)
def test_what_is_no_set_is_refused(make: Callable[[], Baseline], told: str):
    with pytest.raises(BaselineError) as caught:
        make()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def stored() -> dict[str, Any]:
    return baseline_from_records(ten(), "first", saved_at="2026-11-29T12:00:00Z").to_json()


def with_starts(values: Any) -> dict[str, Any]:
    data = stored()
    data["metrics"][KEY]["starts"] = values
    return data


BROKEN: dict[str, tuple[str, str]] = {
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "an integer no float holds": (f'{{"x": {10**400}}}', "too large a number"),
    "not JSON": ('{\n "schema": "baseline/1",\n oops\n}', ":3: not JSON"),
    "empty file": ("", ":1: not JSON"),
    "a list": ("[]", "is a list"),
    "zero": (json.dumps(with_starts([1.0] * 9 + [0])), f"metrics/{KEY}/starts/9: 0 is not above 0"),
    "negative": (json.dumps(with_starts([1.0] * 9 + [-1.0])), "starts/9: -1.0 is not above 0"),
    "NaN": (json.dumps(with_starts([1.0] * 9 + [math.nan])), "NaN is no JSON number"),
    "infinite": (json.dumps(with_starts([math.inf] * 10)), "Infinity is no JSON number"),
    "no starts": (json.dumps(with_starts([])), f"metrics/{KEY}/starts: the list is empty"),
    "text": (json.dumps(with_starts([1.0] * 9 + ["100"])), "starts/9: '100' is not of type 'number'"),
    "a start short": (json.dumps(with_starts([1.0] * 9)), "9 values for 10 starts"),
    "a missing key": (json.dumps({k: v for k, v in stored().items() if k != "reason"}), "'reason' is a required"),
    "an unknown key": (json.dumps({**stored(), "best": 1}), "'best' was unexpected"),
    "an unknown version": (json.dumps({**stored(), "schema": "baseline/9"}), "'baseline/9' is not baseline/1"),
    "a start twice": (json.dumps({**stored(), "starts": ["s1"] * 10}), "listed twice"),
    "no metrics": (json.dumps({**stored(), "metrics": {}}), "metrics"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_bad_file_is_one_clear_line(case: str, tmp_path: Path):
    text, told = BROKEN[case]
    path = baseline_path(tmp_path, "cpu", "cpu", "baseline")
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BaselineError) as caught:
        load_baseline(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert told in message
    assert message.count(": ") >= 2
    assert any(fix in message for fix in ("save", "restore", "correct", "measure", "use the suite"))


def test_a_baseline_in_another_ones_place_is_refused(tmp_path: Path):
    path = write_baseline(baseline_from_records(ten(), "x"), tmp_path)
    moved = path.with_name("eagle3.json")
    path.rename(moved)
    with pytest.raises(BaselineError, match="is the baseline of cpu/cpu/baseline"):
        load_baseline(moved)


def test_a_missing_file_is_one_line(tmp_path: Path):
    with pytest.raises(BaselineError, match="cannot be read"):
        load_baseline(tmp_path / "a" / "b" / "c.json")


def test_another_machines_baseline_is_not_comparable():
    stored_one = baseline_from_records(ten(), "x")
    differences = differing(stored_one.environment, {**stored_one.environment, "machine": "b2"})
    metric = stored_one.metrics[KEY]
    found = decide(metric.spec(), metric.given(), [50.0] * 5, incomparable=[str(each) for each in differences])
    assert found.verdict == "no comparable baseline"
    assert found.differences == ("machine: a1 -> b2",)


def test_the_campaigns_figures_are_reported_never_measured():
    folder = BASELINES / "pcie_blackwell" / "cu128"
    read = {path.stem: load_baseline(path) for path in sorted(folder.glob("*.json"))}
    rates = {name: each.metrics[KEY].reported for name, each in read.items() if each.provenance == "reported"}
    expected = {"baseline_bs512": 82.0, "baseline_bs128": 89.5, "eagle3": 54.1, "custom_all_reduce": 38.0}
    assert rates == {name: (value,) for name, value in expected.items()}
    eagle3 = read["eagle3"].metrics
    assert eagle3["single_stream/verify_ms"].reported == (30.0,)
    assert eagle3["single_stream/all_reduce_us"].reported == (150.0, 300.0)
    assert eagle3["single_stream/all_reduces_per_pass"].reported == (61 * 2,)
    assert eagle3["single_stream/bytes_per_all_reduce"].reported == (3 * 7168 * 2,)
    assert decide(eagle3[KEY].spec(), eagle3[KEY].given(), [50.0] * 5).verdict == "regression"
    assert decide(MetricSpec(KEY, "reported", "higher"), [82.0], [80.0] * 5).verdict == "no change"


def test_every_stored_baseline_loads():
    for path in BASELINES.glob("*/*/*.json"):
        load_baseline(path)


def test_starts_of_a_night_that_served_a_part_make_no_baseline():
    """They lack the metrics of the other workloads."""
    starts = ten()
    for number, start in enumerate(starts, 1):
        start.night = NightPlace("baseline", 4, number, number, "all", ())
    assert len(baseline_from_records(starts, "x").starts) == 10
    starts[3].night = NightPlace("baseline", 4, 4, 4, "headline", ())
    with pytest.raises(BaselineError, match="9 starts under all workloads are too few: give --no-control --starts 10"):
        baseline_from_records(starts, "x")
