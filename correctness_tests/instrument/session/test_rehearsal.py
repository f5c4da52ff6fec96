"""A rehearsal: it plans the same twice, its clock is the box's, and its records are evidence of nothing anywhere."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from start_cases import write_starts

from fixtures.campaign.approach import RATE
from fixtures.campaign.loading import load_approaches
from fixtures.campaign.outcomes import Outcome, OutcomeComparison
from fixtures.campaign.sides import side_of_results
from fixtures.campaign.summary import record_lines
from fixtures.campaign.trial import Arm, ArmOutcome, Tried
from fixtures.deployments import load_box
from fixtures.deployments.rehearsed import rehearsed
from fixtures.errors import BaselineError, RecordError
from fixtures.gate.drift import points_from_folders
from fixtures.gate.saving import baseline_from_records
from fixtures.night.answers import finished_of
from fixtures.night.spec import NightArm, NightSpec, Takes
from fixtures.night.state import Night
from fixtures.records.start import NightPlace
from fixtures.records.store import read_records
from fixtures.serving.workloads import load_workload
from fixtures.session.live_night import LiveNight
from fixtures.session.measurements import Measurements, Plan
from fixtures.session.night_plan import recent
from fixtures.session.rehearsal import plan_after, require_alike, shortened

BOX = load_box("pcie_blackwell")
REHEARSED = rehearsed(BOX, load_box("cpu"))
HOUR_S = 180.0
PLACE = NightPlace("baseline", 1, 1, 1, "all", (("baseline", "all"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve starts of a rehearsal of the `cpu` box."""
    write_starts(tmp_path / "rehearsal", 12, rehearsal_hour_s=HOUR_S)
    return tmp_path / "rehearsal"


def test_the_mark_is_kept_and_is_absent_from_other_records(folder: Path, tmp_path: Path) -> None:
    write_starts(tmp_path / "real", 1)
    assert {each.rehearsal_hour_s for each in read_records(folder)} == {HOUR_S}
    assert [each.rehearsal_hour_s for each in read_records(tmp_path / "real")] == [None]
    with pytest.raises(RecordError, match="rehearsal_hour_s"):
        write_starts(tmp_path / "odd", 1, rehearsal_hour_s=0.0)


def test_no_baseline_comes_of_it(folder: Path) -> None:
    with pytest.raises(BaselineError, match="start s0 is of a rehearsal: it can be no baseline of box cpu"):
        baseline_from_records(read_records(folder), "as rehearsed")


def test_it_is_compared_with_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="s0 is of a rehearsal, and evidence of nothing: give a run of the box"):
        side_of_results(folder)
    write_starts(tmp_path / "real", 2)
    points, _ = points_from_folders([folder, tmp_path / "real"])
    assert [each.label for each in points] == ["real"]


def test_no_plan_takes_its_durations(folder: Path, tmp_path: Path) -> None:
    write_starts(tmp_path / "real", 1, name="baseline-20260101T000000-00000")
    assert [each.rehearsal_hour_s for each in recent(tmp_path / "tonight", "cpu")] == [None]


@pytest.mark.parametrize(("rehearsing", "says"), [(False, "is of a rehearsal"), (True, "is not of a rehearsal")])
def test_it_goes_on_with_its_kind_alone(rehearsing: bool, says: str, tmp_path: Path) -> None:
    write_starts(tmp_path / "r", 1, rehearsal_hour_s=None if rehearsing else HOUR_S)
    records = read_records(tmp_path / "r")
    require_alike(records, not rehearsing, tmp_path)
    with pytest.raises(RecordError, match=says):
        require_alike(records, rehearsing, tmp_path)


def test_its_clock_is_the_box_s(tmp_path: Path) -> None:
    write_starts(tmp_path / "r", 1, rehearsal_hour_s=HOUR_S, night=PLACE)
    (record,) = read_records(tmp_path / "r")
    record.finished_at = "2026-01-01T00:03:00.000Z"  # an hour of the box
    found = finished_of(record, [RATE], record.started_at)
    assert found.ended_s == 3600.0
    assert finished_of(replace(record, rehearsal_hour_s=None), [RATE], record.started_at).ended_s == HOUR_S


@pytest.mark.parametrize(("ago_s", "left"), [(HOUR_S - 30, True), (HOUR_S + 30, False)])
def test_an_hour_of_its_budget_is_over_when_its_seconds_are(ago_s: float, left: bool, tmp_path: Path) -> None:
    """For the starts of the night, whose load takes a minute of the box, and for those outside of it."""
    plan = Plan(
        run="r", box=BOX.name, stack="cu130", results=tmp_path, starts=1, limit_s=3600.0, side=lambda each: None,
        against=lambda each: None, block_pairs=2, room=1, workloads=lambda each: (), rehearsal_hour_s=HOUR_S,
    )  # type: ignore[arg-type, return-value]
    source = Measurements(plan, lambda subject, step: None)
    source._began -= ago_s
    assert source.time_left() is left
    takes = Takes(60.0, 1.0, 1.0)
    arms = [NightArm(name, takes) for name in ("control", "arm")]
    night = Night(NightSpec(arms[0], (arms[1],), {RATE: "higher"}, budget_s=3600.0))
    served: list[str] = []

    class Served(Exception):
        """Ends the night at its first start."""

    def serve(deployment: Any, step: Any) -> Any:
        served.append(step.deployment)
        raise Served

    live = LiveNight(night, {"control": BOX, "arm": BOX}, serve, lambda: None, print, plan.pace)  # type: ignore[dict-item]
    live.began -= ago_s
    with suppress(Served):
        live.run()
    assert bool(served) is left


def test_no_outcome_is_recorded_of_it(tmp_path: Path) -> None:
    approach = load_approaches()["eagle3"]
    arm = Arm(REHEARSED.deployment("eagle3"), REHEARSED.deployment("baseline_bs128"))
    comparison = OutcomeComparison("eagle3", "cu130", approach.outcome("cu130"), Outcome.IMPROVES, rehearsed=True)
    tried = Tried("eagle3", "cu130", (ArmOutcome(arm, Outcome.IMPROVES, "faster"),), comparison)
    assert "a rehearsal, nothing to record" in str(tried)
    assert "approaches.toml" not in str(tried)
    for hour, lines in ((None, True), (HOUR_S, False)):
        write_starts(tmp_path / str(hour), 1, deployment="eagle3", rehearsal_hour_s=hour)
        assert bool(record_lines(tried, read_records(tmp_path / str(hour)))) is lines


def test_the_campaign_s_plan_is_written_as_it_would_be(tmp_path: Path) -> None:
    """With the outcomes and figures of the rehearsal, and told as one."""
    arm = Arm(REHEARSED.deployment("eagle3"), REHEARSED.deployment("baseline_bs128"))
    comparison = OutcomeComparison("eagle3", "cu130", Outcome.NOT_TRIED, Outcome.SLOWER)
    tried = Tried("eagle3", "cu130", (ArmOutcome(arm, Outcome.SLOWER, "it is slower"),), comparison)
    write_starts(tmp_path / "r", 3, deployment="eagle3", speed=123.0, rehearsal_hour_s=HOUR_S)
    text = plan_after(REHEARSED, "cu130", load_approaches(), [tried], read_records(tmp_path / "r"))
    assert text.startswith("> REHEARSAL of box pcie_blackwell")
    assert "**slower** (measured): rehearsed: it is slower" in text
    assert "measured, 3 starts" in text


@pytest.mark.parametrize("name", sorted({each for one in BOX.deployments.values() for each in one.workloads}))
def test_a_workload_keeps_how_many_requests_are_in_flight(name: str) -> None:
    whole = load_workload(name, "pcie_blackwell")
    short = shortened(whole)
    assert (short.name, short.concurrency, short.cache) == (name, whole.concurrency, whole.cache)
    assert whole.concurrency <= short.requests < whole.requests
    assert short.max_new_tokens < whole.max_new_tokens
    assert short.fingerprint() != whole.fingerprint() if not whole.chat else short.measured_prompts()


def test_the_gpu_box_is_rehearsed_to_the_same_plan(suite: Any, tmp_path: Path) -> None:
    """Twice the same, with what is left out, and in the box's own time."""
    asked = ("-q", "-m", "perf", "--box=pcie_blackwell", "--plan", "--seed=1", "--budget=10h")
    plans = []
    for _ in range(2):
        code, text = suite(*asked, "--rehearse", f"--results={tmp_path / 'none'}")
        assert code == 0, text
        assert text.count("REHEARSAL of box pcie_blackwell") == 1
        assert text.count("options.device: cpu, which the CPU takes (") == 1
        plans.append([line for line in text.splitlines() if "  round " in line])
    assert plans[0] == plans[1]
    begins, ends = plans[0][0].split()[:3:2]
    assert begins == "00:00"
    assert "00:08" < ends < "00:25"  # a start of the box: eight minutes until it is ready, then its workloads
    assert not (tmp_path / "none").exists()


def test_a_folder_of_a_rehearsal_says_so_and_can_be_nothing_else(suite: Any, tmp_path: Path) -> None:
    """Judged again it is told as a rehearsal; it cannot be a baseline, gone on with as a real night, or compared."""
    folder = tmp_path / "r"
    for number, name in enumerate(("baseline_bs128", "eagle3"), start=1):
        place = NightPlace("baseline_bs128", 1, number, 1, "headline", ((name, "headline"),))
        write_starts(
            folder, 1, name=name, deployment=name, box="pcie_blackwell", stack="cu130", rehearsal_hour_s=HOUR_S,
            night=place,
        )  # fmt: skip
    perf = ("-m", "perf", "--box=pcie_blackwell")
    page = tmp_path / "page.html"
    code, text = suite(*perf, f"--from-results={folder}", f"--html={page}")
    assert code in (0, 1), text
    assert "REHEARSAL of box pcie_blackwell" in text
    assert "evidence of nothing" in page.read_text(encoding="utf-8").partition("<nav")[0]
    for asked, says in (
        ((f"--from-results={folder}", "--save-baseline=a reason"), "is of a rehearsal: it can be no baseline"),
        ((f"--resume={folder}", "--plan"), "is of a rehearsal, and this is not of one"),
        ((f"--compare={folder},cu128",), "is of a rehearsal, and evidence of nothing"),
    ):
        code, text = suite(*perf, *asked)
        assert code != 0
        assert says in text
        assert "Traceback" not in text
