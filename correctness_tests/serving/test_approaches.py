"""Approaches on real servers: a path that is silently off, outputs judged before speed, and the cost model's ratio.

About five minutes on two cores: eight starts. The last test is the control of the first: without the fault the same
server gives figures.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.campaign.approach import RATE
from fixtures.campaign.outcomes import Outcome
from fixtures.campaign.steps import prediction, step_times
from fixtures.campaign.trial import Arm, arm_outcome
from fixtures.deployments import Deployment, load_box, resolve_model
from fixtures.deployments.effective import activities
from fixtures.deployments.stacks import stack
from fixtures.errors import DeploymentError
from fixtures.gate.spec import Judgement
from fixtures.records.correctness import Correctness, ReplayChecked
from fixtures.records.start import StartRecord, utc_now
from fixtures.serving.failure import Cause
from fixtures.serving.workloads import load_workload
from fixtures.session.against import candidate_side
from fixtures.session.correctness import answers_of, judged, questions_for
from fixtures.session.measure_start import Subject, measure_start

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("approaches")]

FAULT = "SGLANG_CPU_FAULT"
BOX = load_box("cpu")
SILENT = "silent_refusal"
STARTS = 2


@pytest.fixture(scope="module")
def arm() -> Arm:
    """EAGLE-3 against the plain server; a busy machine may take its time to start."""
    eagle3, baseline = (replace(BOX.deployment(name), deadline_s=600) for name in ("eagle3", "baseline"))
    try:
        for model in (baseline.model, str(eagle3.draft_model)):
            resolve_model(model, os.environ)
    except DeploymentError as error:
        pytest.skip(str(error))
    return Arm(eagle3, baseline)


def with_fault(deployment: Deployment, fault: str) -> Deployment:
    return replace(deployment, environment={**deployment.environment, FAULT: fault})


def measured(deployment: Deployment, folder: Path, index: int = 0, requests: int | None = None) -> StartRecord:
    """One start under the workload of one request at a time."""
    workload = load_workload(RATE.split("/")[0], BOX.name)
    if requests is not None:
        workload = replace(workload, requests=requests, warm_up_requests=1)
    side = candidate_side(deployment, stack("cpu"))
    return measure_start(Subject(side, (workload,), "live"), "stage1", index, folder, lambda step: None)


def test_a_path_that_is_silently_off_is_unsupported(arm: Arm, tmp_path: Path) -> None:
    """The draft is loaded, its arguments are reported, the answers are right and quick: still no EAGLE-3."""
    record = measured(with_fault(arm.candidate, SILENT), tmp_path, requests=3)
    assert record.status == "measurement failed"
    assert record.failure is not None
    assert record.failure["cause"] == Cause.NOT_ACTIVE
    assert "no verify pass" in record.failure["message"]
    assert record.metrics == [], "no figure stands under the name of a path that did nothing"
    log = (tmp_path / record.log).read_text(errors="replace")
    assert f"FAULT ACTIVE {SILENT}" in log
    told = activities(arm.candidate.evidence, log, stack("cpu").release)
    assert [each.state for each in told] == ["active"], "the log alone would have proved the path active"
    effective = record.configuration["effective"]
    assert effective["speculative_algorithm"] == "EAGLE3", "and so would the configuration"

    right = Correctness("cpu", "cpu", "eagle3", "baseline", utc_now(), replay=ReplayChecked(64, 0.0, 0.1))
    quick = Judgement(RATE, "improvement", "50 % faster")
    found = arm_outcome(arm, [record], right, quick)
    assert found.outcome is Outcome.UNSUPPORTED
    assert "faster" not in str(found)


def test_outputs_are_judged_by_a_server_without_the_approach(arm: Arm, tmp_path: Path) -> None:
    candidate, judge = (candidate_side(each, stack("cpu")) for each in (arm.candidate, arm.reference))
    faulty = replace(candidate, deployment=with_fault(arm.candidate, "accept_second:1"))
    questions = questions_for(arm.reference)
    answers = {
        name: answers_of(side, questions, tmp_path / name) for name, side in (("right", candidate), ("wrong", faulty))
    }
    found = judged(judge, questions, answers, tmp_path / "judge")
    right, wrong = found["right"], found["wrong"]
    assert isinstance(right, ReplayChecked)
    assert right.findings == ()
    assert right.positions >= 1000
    assert isinstance(wrong, ReplayChecked)
    assert any("replay regret" in finding for finding in wrong.findings)
    assert Correctness("cpu", "cpu", "eagle3", "baseline", utc_now(), replay=wrong).correct is False


@pytest.mark.alone
def test_the_cost_model_predicts_what_eagle3_brings(arm: Arm, tmp_path: Path) -> None:
    """Within 15 %, from the passes and accept lengths that these servers counted, not from the speculative rate."""
    sides = (arm.reference, arm.candidate)
    records = [measured(deployment, tmp_path, index) for index in range(STARTS) for deployment in sides]
    assert [record.failure for record in records] == [None] * len(records)
    found = prediction(records[0::2], records[1::2])
    print(found, *step_times(records)[0], sep="\n")
    assert abs(found.error) <= 0.15, str(found)
