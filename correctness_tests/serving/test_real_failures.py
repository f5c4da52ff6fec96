"""Real SGLang servers made to fail: each is one line with its cause, at once, and nothing stays behind.

The whole file takes four to five minutes on two cores: nine starts, most of which end early on purpose.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

from fixtures.deployments.command import resolve_model
from fixtures.deployments.deployment import Deployment
from fixtures.deployments.loading import load_box
from fixtures.deployments.stacks import stack
from fixtures.errors import DeploymentError, ServerError
from fixtures.records.start import StartRecord
from fixtures.serving.failure import Cause
from fixtures.serving.processes import ProcessId, command_line, family
from fixtures.serving.server import ENTRY, start_server
from fixtures.serving.workloads import load_workload
from fixtures.session.against import candidate_side
from fixtures.session.measure_start import Subject, measure_start

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("real failures")]

FAULT = "SGLANG_CPU_FAULT"
PASSES_BEFORE = 30
"""More forward passes than SGLang's own warm-up takes, fewer than 64 tokens do."""


@pytest.fixture
def baseline() -> Deployment:
    # A busy machine may take its time to start; what is tested here is how a server fails.
    deployment = replace(load_box("cpu").deployment("baseline"), deadline_s=600)
    try:
        resolve_model(deployment.model, {})
    except DeploymentError as error:
        pytest.skip(str(error))
    return deployment


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    for status in tmp_path.rglob("guard*.json"):
        told = json.loads(status.read_text())
        assert told["state"] == "ended"
        assert not ProcessId.parse(told["guard"]).alive
        assert not family(ProcessId.parse(told["server"]).pid)


def failure_of(deployment: Deployment, tmp_path: Path, entry: tuple[str, ...] = ENTRY) -> ServerError:
    with (
        pytest.raises(ServerError) as caught,
        start_server(deployment, directory=tmp_path / "start", entry=entry),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert caught.value.lines or caught.value.cause == Cause.PORT
    return caught.value


def measured(
    deployment: Deployment, tmp_path: Path, stall_s: float = 60.0, tell: Callable[[str], None] = lambda step: None
) -> StartRecord:
    """A start that serves 2 × 64 greedy tokens, measured as every start is."""
    workload = load_workload("single_stream", "cpu")
    workload = replace(workload, requests=2, warm_up_requests=1, max_new_tokens=64, stall_s=stall_s)
    subject = Subject(candidate_side(deployment, stack("cpu")), (workload,), "r")
    record = measure_start(subject, "stage1", 0, tmp_path / "results", tell)
    assert "\n" not in (record.failure or {}).get("message", "")
    return record


def test_an_argument_that_this_release_does_not_know(baseline: Deployment, tmp_path: Path) -> None:
    error = failure_of(baseline, tmp_path, (*ENTRY, "--no-such-argument", "1"))
    assert error.cause == Cause.UNKNOWN_ARGUMENT
    assert "--no-such-argument" in str(error)


def test_a_model_that_is_not_there_is_refused_before_a_start(baseline: Deployment, tmp_path: Path) -> None:
    missing = replace(baseline, model=str(tmp_path / "absent"))
    with pytest.raises(DeploymentError, match="absent"), start_server(missing, directory=tmp_path / "start"):
        pass
    assert not (tmp_path / "start").exists()


def test_a_model_without_weights(baseline: Deployment, tmp_path: Path) -> None:
    hollow = tmp_path / "hollow"
    shutil.copytree(resolve_model(baseline.model, {}), hollow, ignore=shutil.ignore_patterns("*.safetensors"))
    error = failure_of(replace(baseline, model=str(hollow)), tmp_path)
    assert error.cause == Cause.MODEL
    assert "hollow" in str(error)


def test_a_port_that_sglang_itself_finds_taken(
    baseline: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite looks first; this is the race it can lose."""
    monkeypatch.setattr("fixtures.serving.server.PORT_TRIES", 1)
    monkeypatch.setattr("fixtures.serving.readiness._refuse_strangers", lambda *_: None)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        monkeypatch.setattr("fixtures.serving.server.free_port", lambda: holder.getsockname()[1])
        with pytest.raises(ServerError) as caught, start_server(baseline, directory=tmp_path / "start"):
            pass
    assert caught.value.cause == Cause.PORT


def test_memory_that_does_not_suffice(baseline: Deployment, tmp_path: Path) -> None:
    starved = replace(baseline, options={**baseline.options, "memory_fraction": 0.00001})
    error = failure_of(starved, tmp_path)
    assert error.cause == Cause.OUT_OF_MEMORY
    assert "while " in str(error)


def planted(deployment: Deployment, fault: str) -> Deployment:
    return replace(deployment, environment={**deployment.environment, FAULT: f"{fault}:{PASSES_BEFORE}"})


def test_a_crash_in_a_hook_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    record = measured(planted(baseline, "crash_pass"), tmp_path)
    assert record.failure["cause"] == Cause.HOOK
    assert any("crash_pass" in fault for fault in record.faults)


def test_a_hang_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    record = measured(planted(baseline, "hang_pass"), tmp_path, stall_s=5)
    assert record.failure["cause"] == Cause.HANG
    assert "no token for 5 s" in record.failure["message"]
    assert "it runs but stopped answering" in record.failure["message"]
    assert record.seconds["generating"] < 60


def test_a_scheduler_that_exits_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    record = measured(planted(baseline, "exit_pass"), tmp_path)
    assert record.failure["cause"] == Cause.UNKNOWN
    assert "scheduler_0 exited with 77" in record.failure["message"]


def test_a_scheduler_killed_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    def kill(step: str) -> None:
        if step.endswith("requests"):  # the first tokens of the measured requests have arrived
            (status,) = (tmp_path / "results").glob("*/guard.json")
            server = ProcessId.parse(json.loads(status.read_text())["server"])
            for process in family(server.pid):
                if "scheduler" in command_line(process.pid):
                    process.send(SIGKILL)

    record = measured(baseline, tmp_path, tell=kill)
    assert record.failure["cause"] == Cause.KILLED
    assert "scheduler_0 was killed by SIGKILL" in record.failure["message"]
