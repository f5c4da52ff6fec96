"""A night on the machine, with the starts themselves scripted: every start has its place, nothing measured is lost or
counted twice, whatever ends it, and its records alone give the verdicts of the run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from start_cases import ENVIRONMENT

from fixtures.deployments import load_box
from fixtures.deployments.deployment import Box
from fixtures.errors import MeasurementFailed
from fixtures.night.answers import apart, headline_of, judgement, placed, replayed, spec_of
from fixtures.night.schedule import verdicts
from fixtures.night.spec import NightSpec
from fixtures.night.state import observations
from fixtures.records import environment
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord, utc_now
from fixtures.records.store import SUFFIX, read_records, write_record
from fixtures.session import measurements
from fixtures.session.measure_start import NOT_KEPT
from fixtures.session.measurements import Measurements, Plan
from fixtures.session.night_judge import NightJudge
from fixtures.session.night_plan import NightRequest, control_among, spec_for
from fixtures.session.rank_starts import Ranks

BOX: Box = load_box("cpu")
KEYS = ("single_stream/decode_tok_s", "concurrency_8/output_tok_s")
NAMES = ("baseline", "eagle3", "tp2")
RATES = {"baseline": 100.0, "eagle3": 160.0, "tp2": 60.0}


def spec(results: Path, rounds: int = 8) -> NightSpec:
    request = NightRequest(
        BOX, "cpu", NAMES, "baseline", rounds, None, False, results,
        {each.name: list(each.workloads) for each in BOX.deployments.values()},
    )  # fmt: skip
    return spec_for(request, {}, 7)


class Scripted:
    """The starts of a run: rates with a noise of 1 %, and what happens at which start (by its number, from 1)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rates: Mapping[str, float] = RATES) -> None:
        self.rates, self.trouble = dict(rates), {}  # type: dict[str, float], dict[int, Callable[[StartRecord], None]]
        self.made: list[StartRecord] = []
        monkeypatch.setattr(measurements, "measure_start", self.measure_start)

    def measure_start(self, subject: Any, role: Any, index: int, results: Path, tell: Any) -> StartRecord:
        noise = random.Random(f"{subject.side.deployment.name} {index}")
        name, at = subject.side.deployment.name, utc_now()
        record = StartRecord(
            id=f"{name}-{len(self.made)}-{subject.run}", run=subject.run, box="cpu", stack="cpu", deployment=name,
            role=role, index=index, started_at=at, finished_at=at, environment=dict(ENVIRONMENT), night=subject.night,
        )  # fmt: skip
        rate = self.rates[name] * (1 + noise.gauss(0, 0.01))
        for key in KEYS:
            workload, metric = key.split("/")
            record.metrics.append(Metric(metric, rate, "tok/s", "timing", "higher", workload, 12))
        trouble = self.trouble.pop(subject.night.number, None)
        if trouble is not None:
            trouble(record)
        self.made.append(record)
        write_record(record, results)
        return record


def run(folder: Path, rounds: int = 8, resume: bool = False) -> Measurements:
    plan = Plan(
        run="r", box="cpu", stack="cpu", results=folder, starts=1, limit_s=None,
        side=lambda deployment: SimpleNamespace(deployment=deployment), against=lambda deployment: None,
        block_pairs=2, room=2, workloads=lambda deployment: (), deployments=BOX.deployments, resume=resume,
        night=lambda session, earlier: replayed(spec(folder, rounds), earlier, session),
    )  # type: ignore[arg-type, return-value]
    return Measurements(plan, lambda subject, step: None)


def said(folder: Path, most: int = 1000) -> dict[tuple[str, str], str]:
    records = placed(read_records(folder))[:most]
    alone = spec_of(records, headline_of(KEYS))
    assert alone is not None
    return {key: each.verdict for key, each in verdicts(replayed(alone, records)).items()}


def failing(cause: str, text: str) -> Callable[[StartRecord], None]:
    def fail(record: StartRecord) -> None:
        record.status = "measurement failed"
        record.failure = {"cause": cause, "message": text, "lines": []}
        record.metrics = []

    return fail


@pytest.fixture(autouse=True)
def headline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixtures.session.night_plan.headline_of", lambda keys: headline_of(KEYS))


def test_a_night_decides_and_its_records_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    source = run(tmp_path)
    starts = source.stage1(BOX.deployment("eagle3"))
    assert source.night is not None
    assert source.night.stop is not None
    assert source.night.stop.kind == "done"
    assert len(starts) < 8
    assert {each.deployment for each in scripted.made} == {*NAMES}
    live = {key: each.verdict for key, each in verdicts(source.night.night).items()}
    assert said(tmp_path) == live
    assert {live["eagle3", key] for key in KEYS} == {"improvement"}
    assert "regression" in {live["tp2", key] for key in KEYS}
    assert source.stage1(BOX.deployment("tp2")) == [each for each in scripted.made if each.deployment == "tp2"]
    numbers = [each.night.number for each in scripted.made if each.night]
    assert numbers == sorted({*numbers})


def test_a_verdict_in_the_middle_is_that_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each whole round, whatever was not begun by then."""
    Scripted(monkeypatch, {**RATES, "tp2": 98.0})
    run(tmp_path).stage1(BOX.deployment("eagle3"))
    records = placed(read_records(tmp_path))
    rounds = [each.night.round for each in records if each.night]
    ends = [at + 1 for at, (one, other) in enumerate(pairwise(rounds)) if other > one]
    assert len(ends) > 1
    last = said(tmp_path)
    for end in ends:
        early = {key: each for key, each in said(tmp_path, end).items() if each != "too noisy to tell"}
        assert early == {key: last[key] for key in early}


def undisturbed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    Scripted(monkeypatch)
    run(folder).stage1(BOX.deployment("eagle3"))
    return said(folder)


def to_the_end(folder: Path) -> Measurements:
    """Gone on with until nothing is left, each time as somebody would who mended what was told."""
    for _ in range(4):
        source = run(folder, resume=True)
        source.stage1(BOX.deployment("eagle3"))
        assert source.night is not None
        if source.night.stop is not None and source.night.stop.kind == "done":
            return source
    raise AssertionError("the night does not end")


def of_round_2(subject: Any) -> bool:
    return bool(subject.night.round == 2 and subject.side.deployment.name == "baseline")


def any_arm(subject: Any) -> bool:
    return bool(subject.side.deployment.name != "baseline")


TROUBLES: dict[str, tuple[Callable[[Any], bool], Callable[[StartRecord], None], str]] = {
    "the control fails in round 2": (of_round_2, failing("hang", "it hangs"), "control failed"),
    "all arms fail alike": (any_arm, failing("exception", "the driver is too old"), "same cause"),
    "the disk is full": (lambda subject: subject.night.number == 5, failing(NOT_KEPT, "no space"), "not kept"),
    "a machine without an identity": (lambda subject: False, failing("", ""), "done"),
}


@pytest.mark.parametrize("what", TROUBLES)
def test_after_a_trouble_that_is_mended_the_verdicts_are_those_of_a_night_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Everything measured before counts, once, and nothing that failed stands in the way."""
    hits, trouble, kind = TROUBLES[what]
    expected = undisturbed(tmp_path / "quiet", monkeypatch)
    folder = tmp_path / "night"
    scripted = Scripted(monkeypatch)
    if kind == "done":
        monkeypatch.setattr(environment, "MACHINE_IDS", (tmp_path / "none",))
        monkeypatch.setitem(ENVIRONMENT, "machine", environment.machine_id())

    def troubled(subject: Any, role: Any, index: int, results: Path, tell: Any) -> StartRecord:
        if not hits(subject):
            return scripted.measure_start(subject, role, index, results, tell)
        scripted.trouble[subject.night.number] = trouble
        kept = kind != "not kept"
        record = scripted.measure_start(subject, role, index, results if kept else tmp_path / "elsewhere", tell)
        if not kept:
            scripted.made.remove(record)
        return record

    monkeypatch.setattr(measurements, "measure_start", troubled)
    source = run(folder)
    source.stage1(BOX.deployment("eagle3"))
    assert source.night is not None
    ended = "not kept" if source.night.stop is None else source.night.stop.kind
    assert ended == kind
    monkeypatch.setattr(measurements, "measure_start", scripted.measure_start)
    source = to_the_end(folder)
    records = read_records(folder)
    assert {each.id for each in records} == {each.id for each in scripted.made}
    assert len({each.night.number for each in records if each.night}) == len(records)
    assert said(folder) == {key: each.verdict for key, each in verdicts(source.night.night).items()} == expected  # type: ignore[union-attr]
    assert apart(records) is None


PHASES = ("before it begins", "while it serves", "while its record is written", "once its record is written")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [1, 4, 7])
def test_killed_in_any_phase_of_a_start_the_night_goes_on_to_the_same_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, number: int
) -> None:
    expected = undisturbed(tmp_path / "quiet", monkeypatch)
    folder = tmp_path / "night"
    folder.mkdir()
    scripted = Scripted(monkeypatch)
    killed = [False]

    def measure_start(subject: Any, role: Any, index: int, results: Path, tell: Any) -> StartRecord:
        if subject.night.number != number or killed[0]:
            return scripted.measure_start(subject, role, index, results, tell)
        killed[0] = True
        if phase == "once its record is written":
            scripted.measure_start(subject, role, index, results, tell)
        if phase == "while its record is written":  # what a kill leaves of it
            (results / f".cut{SUFFIX}.x").write_text('{"schema": "start/', encoding="utf-8")
        if phase == "while it serves":
            (results / "cut.log").write_text("Load weight begin.", encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr(measurements, "measure_start", measure_start)
    with pytest.raises(KeyboardInterrupt):
        run(folder).stage1(BOX.deployment("eagle3"))
    before = len(read_records(folder)) if scripted.made else 0
    assert before == len(scripted.made) == number - (phase != "once its record is written")
    if before:
        source = to_the_end(folder)
    else:
        source = run(folder)
        source.stage1(BOX.deployment("eagle3"))
    records = read_records(folder)
    assert sorted(each.id for each in records) == sorted(each.id for each in scripted.made)
    numbers = [each.night.number for each in records if each.night]
    assert len({*numbers}) == len(numbers)
    assert source.night is not None
    assert len(observations(source.night.night)) == len(records)
    assert said(folder) == {key: each.verdict for key, each in verdicts(source.night.night).items()} == expected


def test_ranks_that_were_measured_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the folder would hold them of two runs, and could not be judged."""
    Scripted(monkeypatch)
    at = utc_now()
    ranks = Ranks("ring", "cpu", 2, (("eager", 14336),))
    kept = StartRecord(
        id=f"{ranks.name}-1", run="r", box="cpu", stack="cpu", deployment=ranks.name, role="stage1", index=0,
        started_at=at, finished_at=at, environment=dict(ENVIRONMENT), configuration={"requested": ranks.requested()},
    )  # fmt: skip
    write_record(kept, tmp_path)
    source = run(tmp_path, resume=True)
    assert [each.id for each in source.stage1(ranks)] == [kept.id]
    source.stage1(BOX.deployment("eagle3"))
    assert source.stage1(BOX.deployment("eagle3"))
    assert [each.id for each in source.all_records()].count(kept.id) == 1


def test_a_failed_start_ends_its_arm_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    source = run(tmp_path)
    first = {"tp2": False}

    def break_tp2(subject: Any, *rest: Any) -> StartRecord:
        if subject.side.deployment.name == "tp2" and not first["tp2"]:
            first["tp2"] = True
            scripted.trouble[subject.night.number] = failing("exception", "tp2: a tokenizer raised")
        return scripted.measure_start(subject, *rest)

    monkeypatch.setattr(measurements, "measure_start", break_tp2)
    source.stage1(BOX.deployment("eagle3"))
    assert {said(tmp_path)["eagle3", key] for key in KEYS} == {"improvement"}
    assert [each.status for each in source.stage1(BOX.deployment("tp2"))] == ["measurement failed"]


def test_a_failing_control_stops_the_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    source = run(tmp_path)
    scripted.trouble[1] = failing("driver too old", "baseline: the driver is too old")
    source.stage1(BOX.deployment("eagle3"))
    assert source.night is not None
    assert source.night.stop is not None
    assert source.night.stop.kind == "control failed"
    assert len(scripted.made) == 1
    assert "driver" in source.night.why_not("eagle3")


def test_infrastructure_is_tried_once_more_and_voids_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    source = run(tmp_path)
    scripted.trouble[2] = failing("port in use", "the port was taken")
    source.stage1(BOX.deployment("eagle3"))
    assert {said(tmp_path)["eagle3", key] for key in KEYS} == {"improvement"}
    (failed,) = [each for each in scripted.made if each.status != "ok"]
    assert failed not in source.stage1(BOX.deployment(failed.deployment))
    assert failed in source.all_records()


def test_a_machine_that_stood_still_voids_no_start_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    source = run(tmp_path)
    for number in range(6, 60):  # every later start of the arm, up to the end of the night
        scripted.trouble[number] = lambda record: (
            failing("bunched", "client or server stood still")(record) if record.deployment == "eagle3" else None
        )
    starts = source.stage1(BOX.deployment("eagle3"))
    assert {each.status for each in starts} == {"ok"}
    assert any(each.status != "ok" for each in source.all_records())
    assert set(said(tmp_path)) >= {("eagle3", key) for key in KEYS}
    assert "measurement failed" not in {said(tmp_path)["eagle3", key] for key in KEYS}


def test_an_exception_of_somebody_else_is_the_start_s_failure(tmp_path: Path) -> None:
    from fixtures.session.measure_start import written

    at = utc_now()
    record = StartRecord(
        id="baseline-x", run="r", box="cpu", stack="cpu", deployment="baseline", role="stage1", index=0,
        started_at=at, environment=dict(ENVIRONMENT),
    )  # fmt: skip

    def raises() -> None:
        raise TypeError("a tokenizer of somebody else")

    written(record, tmp_path, raises)
    assert record.failure is not None
    assert record.failure["cause"] == "exception"
    assert "TypeError: a tokenizer of somebody else" in record.failure["message"]
    (kept,) = read_records(tmp_path)
    assert kept.failure == record.failure


def test_starts_of_one_stretch_have_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch)
    source = run(tmp_path)

    def newer(record: StartRecord) -> None:
        record.environment["torch"] = "2.15.0"

    scripted.trouble[3] = newer
    source.stage1(BOX.deployment("eagle3"))
    assert "torch: 2.14.1 -> 2.15.0" in (apart(source.all_records()) or "")


def test_a_decision_as_the_gate_s_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch)
    source = run(tmp_path)
    source.stage1(BOX.deployment("eagle3"))
    assert source.night is not None
    records, decided = source.all_records(), verdicts(source.night.night)
    slower = next(each for (arm, _), each in decided.items() if arm == "tp2" and each.verdict == "regression")
    found = judgement(slower, records, "baseline")
    assert found.blocks
    assert found.ratio == pytest.approx(0.6, rel=0.03)
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.slowdown == pytest.approx(1 / 0.6 - 1, rel=0.05)
    assert found.baseline_value == pytest.approx(100, rel=0.03)
    assert "× baseline" in found.reason
    known = found.excused("box cpu expects it to be slower")
    assert not known.blocks
    assert "expects it to be slower" in known.reason


def test_what_stands_beside_a_night_is_the_gate_s_to_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in the same folder, a metric that is no headline, the control itself."""
    Scripted(monkeypatch)
    source = run(tmp_path)
    own = source.stage1(BOX.deployment("eagle3"))
    judge = NightJudge(BOX, "cpu", {})
    assert judge.judged(source, "all_reduce_ring_cpu_2", "all-reduce/all_reduce_us", ()) is None
    assert judge.judged(source, "baseline", KEYS[0], source.stage1(BOX.deployment("baseline"))) is None
    found = judge.judged(source, "eagle3", KEYS[0], own)
    assert found is not None
    assert found.verdict == "improvement"
    slower = judge.judged(source, "tp2", KEYS[0], source.stage1(BOX.deployment("tp2")))
    assert slower is not None
    assert (slower.verdict, slower.blocks) == ("regression", False)
    assert "expects it to be slower" in slower.reason


def test_records_say_what_is_cold_and_how_starts_vary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = spec(tmp_path / "first")
    assert (new.control.compiles, {arm.compiles for arm in new.arms}, dict(new.spreads)) == (1.0, {0.5}, {})
    Scripted(monkeypatch, {**RATES, "tp2": 97.0, "eagle3": 103.0})
    run(tmp_path / "first").stage1(BOX.deployment("eagle3"))
    known = spec(tmp_path / "second")
    assert {arm.compiles for arm in (known.control, *known.arms)} == {0.0}
    assert {*known.spreads} == {*KEYS}
    assert known.widest == pytest.approx(0.01, rel=0.5), "what the starts of this script vary by"


def test_what_a_run_compares_with() -> None:
    assert control_among(BOX, {"baseline", "eagle3"}, None) == "baseline"
    assert control_among(BOX, {"eagle3"}, None) is None
    assert control_among(BOX, {"baseline"}, None) is None
    assert control_among(BOX, {"eagle3"}, "tp2") == "tp2"
    with pytest.raises(Exception, match=r"--control basline: unknown deployment.*baseline"):
        control_among(BOX, {"eagle3"}, "basline")


def test_the_suite_s_own_errors_keep_their_cause(tmp_path: Path) -> None:
    from fixtures.session.measure_start import written

    record = StartRecord(
        id="baseline-y", run="r", box="cpu", stack="cpu", deployment="baseline", role="stage1", index=0,
        started_at=utc_now(), environment=dict(ENVIRONMENT),
    )  # fmt: skip

    def raises() -> None:
        raise MeasurementFailed("it hangs", "hang")

    written(record, tmp_path, raises)
    assert record.failure is not None
    assert record.failure["cause"] == "hang"


def test_the_gpu_box_s_night_is_planned_anywhere(suite: Any, tmp_path: Path) -> None:
    """The same seed plans the same; nothing is started and nothing is left behind."""
    asked = ("-q", "-m", "perf", "--box=pcie_blackwell", "--plan", "--seed=1", f"--results={tmp_path / 'none'}")
    plans = []
    for budget in ("10h", "10h", "3h"):
        code, text = suite(*asked, f"--budget={budget}")
        assert code == 0, text
        lines = [line for line in text.splitlines() if "  round " in line]
        assert lines[0].endswith("baseline_bs128: control of round 1: headline workloads")
        plans.append(lines)
    assert plans[0] == plans[1]
    assert 0 < len(plans[2]) < len(plans[0])
    assert not (tmp_path / "none").exists()
