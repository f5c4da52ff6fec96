"""From records and a baseline to a verdict: what may be compared with what, and what fails closed."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from fixtures.gate.baselines import Baseline, BaselineMetric
from fixtures.gate.paired import MeasuredPair, pairing_told
from fixtures.gate.question import Question, stored
from fixtures.gate.spec import Judgement
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord

KEY = "single_stream/decode_tok_s"
HERE = {"machine": "a", "torch": "2", "server.tp_size": 1, "workload single_stream": "w1", "workload other": "o1"}
SPEEDS = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.3)


def metrics(speed: float = 100.0, kv: float = 20000.0, accept: float = 3.0) -> list[Metric]:
    return [
        Metric("decode_tok_s", speed, "tok/s", "timing", "higher", "single_stream", 12),
        Metric("kv_tokens", kv, "tokens", "exact", "higher"),
        Metric("accept_length", accept, "tokens/pass", "counted", "higher", "single_stream", 12),
    ]


def start(index: int = 0, found: list[Metric] | None = None, **changes) -> StartRecord:
    values = {
        "id": f"s{index}",
        "run": "r",
        "box": "cpu",
        "stack": "cpu",
        "deployment": "baseline",
        "role": "stage1",
        "index": index,
        "started_at": f"2026-01-01T00:00:{index:02d}Z",
        "environment": dict(HERE),
        "metrics": metrics() if found is None else found,
    }
    return StartRecord(**(values | changes))


def baseline(environment: dict | None = None) -> Baseline:
    ids = tuple(f"b{index}" for index in range(len(SPEEDS)))

    def stored(metric: Metric, values) -> BaselineMetric:
        return BaselineMetric(
            metric.key, metric.name, metric.workload, metric.unit, metric.kind, metric.better, tuple(values), ids
        )

    speed, kv, accept = metrics()
    return Baseline(
        "cpu",
        "cpu",
        "baseline",
        "measured",
        "test",
        "2026-01-01T00:00:00Z",
        environment=environment or dict(HERE),
        metrics={
            speed.key: stored(speed, SPEEDS),
            kv.key: stored(kv, [20000.0] * 10),
            accept.key: stored(accept, [3.0] * 10),
        },
        starts=ids,
    )


def judge(
    key: str, first: list[StartRecord], fresh: list[StartRecord], known: Baseline | None, *, share: float
) -> Judgement:
    return Question("baseline", key, stored(known, key)).answer(first, fresh, share=share)


def speeds(*values: float) -> list[StartRecord]:
    return [start(index, metrics(speed=value)) for index, value in enumerate(values)]


def test_the_same_speed_is_no_change():
    assert judge(KEY, speeds(100, 100.4, 99.7, 100.2, 99.9), [], baseline(), share=0.01).verdict == "no change"


def test_a_slowdown_is_confirmed_by_fresh_starts():
    slow = speeds(90, 90.5, 89.6, 90.2, 89.9)
    fresh = [replace(record, id=f"f{record.index}", role="stage2") for record in slow]
    first = judge(KEY, slow, [], baseline(), share=0.01)
    assert first.needs_confirmation
    assert judge(KEY, slow, fresh, baseline(), share=0.01).verdict == "regression"


def test_without_a_baseline_nothing_is_claimed():
    assert judge(KEY, speeds(100), [], None, share=0.01).verdict == "no comparable baseline"


@pytest.mark.parametrize("component", ["machine", "torch", "server.tp_size", "workload single_stream"])
def test_timing_needs_the_whole_environment(component):
    found = judge(KEY, speeds(50, 50, 50, 50, 50), [], baseline(HERE | {component: "x"}), share=0.01)
    assert found.verdict == "no comparable baseline"
    assert component in found.reason


def test_another_workload_does_not_matter():
    found = judge(KEY, speeds(100, 100, 100.1, 99.9, 100), [], baseline(HERE | {"workload other": "x"}), share=0.01)
    assert found.verdict == "no change"


@pytest.mark.parametrize("key", ["kv_tokens", "single_stream/accept_length"])
def test_counts_compare_on_any_machine_but_not_across_configurations(key):
    other_machine = baseline(HERE | {"machine": "b"})
    other_server = baseline(HERE | {"server.tp_size": 2})
    assert judge(key, [start()], [], other_machine, share=0.01).verdict == "no change"
    assert judge(key, [start()], [], other_server, share=0.01).verdict == "no comparable baseline"


def test_any_change_of_an_exact_metric_is_a_verdict():
    assert judge("kv_tokens", [start(0, metrics(kv=19999))], [], baseline(), share=0.01).verdict == "regression"
    assert judge("kv_tokens", [start(0, metrics(kv=20001))], [], baseline(), share=0.01).verdict == "improvement"


FAILED = {"cause": "killed", "message": "the server was killed", "lines": []}


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "no start was measured"),
        ([start(0), start(1, status="measurement failed", failure=FAILED)], "the server was killed"),
        ([start(0, discarded="first start")], "no start was measured"),
        ([start(0), start(1, found=[])], "a start has no"),
        ([start(0, metrics(speed=math.nan))], "NaN"),
        ([start(0, metrics(speed=0.0))], "0"),
    ],
)
def test_what_was_not_measured_fails(records, said):
    found = judge(KEY, records, [], baseline(), share=0.01)
    assert found.verdict == "measurement failed"
    assert said in found.reason


def test_a_failed_confirmation_is_not_a_pass():
    fresh = [start(9, status="measurement failed", failure=FAILED, role="stage2")]
    assert judge(KEY, speeds(90, 90, 90, 90, 90), fresh, baseline(), share=0.01).verdict == "measurement failed"


def measured_pair(index: int, old: tuple[float, ...], new: tuple[float, ...]) -> MeasuredPair:
    records = start(2 * index, metrics(speed=old[0])), start(2 * index + 1, metrics(speed=new[0]))
    return MeasuredPair(records, {KEY: (list(old), list(new))}, (False, True))


def test_the_line_about_pairing_tells_what_can_be_seen_and_what_pairing_gained():
    """Both sides drift together by 20 %: paired that cancels, unpaired it would be the noise."""
    pairs = [
        measured_pair(index, (speed, speed), (speed * ratio, speed * ratio))
        for index, (speed, ratio) in enumerate([(100.0, 1.001), (120.0, 0.999), (90.0, 1.0), (110.0, 1.0005)])
    ]
    question = Question("baseline", KEY, "other side")
    found = question.answer(pairs, share=0.01)
    told = pairing_told(KEY, pairs, found)
    assert re.match(rf"{KEY}: 3 start pairs can show [-+][\d.]+ % or more; .* (\d+)\.\d times the error", told)
    gained = float(re.search(r"([\d.]+) times", told)[1])
    assert gained > 50
    assert pairing_told(KEY, pairs[:1], question.answer(pairs[:1], share=0.01)) == ""
    assert pairing_told("no such metric", pairs, found) == ""


@pytest.mark.parametrize("component", ["host cpu", "gpus"])
def test_counts_have_a_wider_tolerance_on_another_processor(component):
    """Near-ties fall the other way there; a draft that is broken still shows."""
    here, there = dict(HERE) | {component: "x"}, dict(HERE) | {component: "y"}
    key = "single_stream/accept_length"

    def verdict(accept: float, environment: dict) -> str:
        found = [start(0, metrics(accept=accept), environment=environment)]
        return judge(key, found, [], baseline(here), share=0.01).verdict

    assert verdict(2.85, here) == "regression"
    assert verdict(2.85, there) != "regression"
    assert verdict(2.5, there) == "regression"
