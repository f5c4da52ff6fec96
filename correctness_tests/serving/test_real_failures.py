"""Real SGLang servers made to fail: each is one line with its cause, at once, and nothing stays behind.

The whole file takes four to five minutes on two cores: nine starts, most of which end early on purpose.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import aiohttp
import pytest

from fixtures.deployments.deployment import Deployment
from fixtures.deployments.loading import load_box
from fixtures.deployments.models import resolve_model
from fixtures.errors import DeploymentError, ServerError
from fixtures.serving.failure import Cause
from fixtures.serving.processes import ProcessId, command_line, family
from fixtures.serving.server import ENTRY, Server, start_server
from fixtures.serving.watch import Watch, measure

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


async def generate(server: Server, watch: Watch) -> int:
    """64 greedy tokens, streamed; the number of chunks."""
    body = {
        "text": "def main(",
        "sampling_params": {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True},
        "stream": True,
    }
    chunks = 0
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/generate", json=body) as answer,
    ):
        async for line in answer.content:
            watch.beat()
            if line.startswith(b"data: {"):
                chunks += 1
            if line.startswith(b"data: [DONE]"):
                return chunks
    raise ConnectionResetError(f"the stream ended after {chunks} chunks")


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
    """The suite looks first; this is the race it can lose, on a port that the user fixed."""
    monkeypatch.setattr("fixtures.serving.server._port", lambda name, port: port)
    monkeypatch.setattr("fixtures.serving.readiness._refuse_strangers", lambda *_: None)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with (
            pytest.raises(ServerError) as caught,
            start_server(baseline, directory=tmp_path / "start", port=port),
        ):
            pass
    assert caught.value.cause == Cause.PORT


def test_memory_that_does_not_suffice(baseline: Deployment, tmp_path: Path) -> None:
    starved = replace(baseline, options={**baseline.options, "memory_fraction": 0.00001})
    error = failure_of(starved, tmp_path)
    assert error.cause == Cause.OUT_OF_MEMORY
    assert "while " in str(error)


def test_a_crash_in_a_hook_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    planted = replace(baseline, environment={**baseline.environment, FAULT: f"crash_pass:{PASSES_BEFORE}"})
    with start_server(planted, directory=tmp_path / "start") as server:
        assert any("crash_pass" in fault for fault in server.faults)
        with pytest.raises(ServerError) as caught:
            measure(server, lambda watch: generate(server, watch), stall_s=60)
    assert caught.value.cause == Cause.HOOK
    assert "\n" not in str(caught.value)


def test_a_hang_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    planted = replace(baseline, environment={**baseline.environment, FAULT: f"hang_pass:{PASSES_BEFORE}"})
    with start_server(planted, directory=tmp_path / "start") as server:
        begun = time.monotonic()
        with pytest.raises(ServerError) as caught:
            measure(server, lambda watch: generate(server, watch), stall_s=5)
        assert time.monotonic() - begun < 60
    assert caught.value.cause == Cause.HANG
    assert "nothing arrived for 5 s" in str(caught.value)


def test_a_scheduler_that_exits_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    planted = replace(baseline, environment={**baseline.environment, FAULT: f"exit_pass:{PASSES_BEFORE}"})
    with start_server(planted, directory=tmp_path / "start") as server:
        with pytest.raises(ServerError) as caught:
            measure(server, lambda watch: generate(server, watch), stall_s=60)
        assert not server.guarded.running
    assert caught.value.cause == Cause.UNKNOWN
    assert "scheduler_0 exited with 77" in str(caught.value)


def test_a_scheduler_killed_in_the_middle_of_a_workload(baseline: Deployment, tmp_path: Path) -> None:
    with start_server(baseline, directory=tmp_path / "start") as server:
        assert measure(server, lambda watch: generate(server, watch)) > 0
        scheduler = next(p for p in family(server.pid) if "scheduler" in command_line(p.pid))

        async def interrupted(watch: Watch) -> int:
            work = asyncio.ensure_future(generate(server, watch))
            await asyncio.sleep(0.05)
            scheduler.send(SIGKILL)
            return await work

        with pytest.raises(ServerError) as caught:
            measure(server, interrupted, stall_s=60)
        assert not server.guarded.running
    assert caught.value.cause == Cause.KILLED
    assert "scheduler_0 was killed by SIGKILL" in str(caught.value)
