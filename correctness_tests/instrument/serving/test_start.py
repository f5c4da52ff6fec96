"""A server that does not start, or is not the one that was started, is one clear line; nothing stays
behind."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from serving_cases import ENTRY, RELEASE, SCRIPTED, deployment, gone, marked

from fixtures.deployments.deployment import Evidence
from fixtures.errors import MeasurementFailed, ServerError, SuiteError
from fixtures.records.start import StartRecord
from fixtures.records.store import read_records
from fixtures.serving.failure import Cause, Phase
from fixtures.serving.launch import free_port
from fixtures.serving.processes import ProcessId, family
from fixtures.serving.server import Server, begin_server, start_server
from fixtures.serving.workloads import load_workload
from fixtures.session.against import CANDIDATE, Side
from fixtures.session.measure_start import Subject, measure_start

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    yield
    assert not marked(), "a test left processes behind"
    assert not list(scratch.iterdir()), "a test left temporary files behind"


@pytest.fixture
def leftover(tmp_path: Path) -> Iterator[int]:
    """A server nobody stopped, on a port: started outside of the suite."""
    port = free_port()
    argv = [
        sys.executable,
        "-S",
        str(SCRIPTED),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--weight-version",
        "old",
    ]
    process = subprocess.Popen(argv, env={"SCRIPT": "normal"}, stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    members = family(process.pid)
    yield port
    for member in members:
        member.send(SIGKILL)
    process.kill()
    process.wait()


def refused(tmp_path: Path, script: str, **given: object) -> SuiteError:
    asked = deployment(tmp_path, script, **given)  # type: ignore[arg-type]
    with (
        pytest.raises(SuiteError) as caught,
        start_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("scripted: ")
    return caught.value


def running(tmp_path: Path) -> Server:
    asked = deployment(tmp_path, "normal")
    return begin_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY)


def test_a_server_starts_answers_for_itself_and_ends_with_its_family(tmp_path: Path) -> None:
    asked = deployment(tmp_path, "normal")
    with start_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY) as server:
        server.prove_identity()
        assert server.info["weight_version"] == server.guarded.mark.nonce
        assert server.log_path.read_text().endswith("ready to roll!\n")
        assert server.passes_dir.is_dir()
        guard = server.guarded.guard
        members = family(guard.pid) | {guard}
        # Server, its child, the orphan in a session of its own, the guard.
        assert len(members) == 4
        assert Server.from_json(server.to_json()) == server
    assert gone(members, 0.5)


def test_a_server_has_the_variables_of_its_run_first(tmp_path: Path) -> None:
    """setproctitle, which names SGLang's processes, finds the command line by where the first variable lies: none that
    the suite adds, of which torch sets one anew."""
    server = running(tmp_path)
    try:
        block = Path(f"/proc/{server.guarded.process.pid}/environ").read_text()
        own = [key for key in os.environ if not key.startswith(("PYTEST_", "COV_"))]
        assert block.partition("=")[0] == own[0]
        assert "TORCHINDUCTOR_CACHE_DIR=" in block
    finally:
        server.stop()


def test_a_process_that_exits_fails_the_start_at_once_with_its_exception(tmp_path: Path) -> None:
    begun = time.monotonic()
    error = refused(tmp_path, "exit")
    assert time.monotonic() - begun < 5
    assert error.cause == Cause.EXCEPTION
    assert "planted crash" in str(error)
    assert "exit code 3" in str(error)
    assert str(tmp_path / "start" / "server.log") in str(error)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("hang", "nothing listened"),
        ("deaf", "no answer to /ready"),
        ("unready", "503"),
        ("error500", "HTTP 500"),
    ],
)
def test_a_server_that_is_not_ready_by_its_deadline_hangs(tmp_path: Path, script: str, said: str) -> None:
    begun = time.monotonic()
    error = refused(tmp_path, script, deadline_s=1.5)
    assert time.monotonic() - begun < 6
    assert error.cause == Cause.HANG
    assert "not ready within 1.5 s" in str(error)
    assert said in str(error)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    asked = deployment(tmp_path, "normal")
    with pytest.raises(ServerError, match="No such file"):
        begin_server(asked, directory=tmp_path / "start", release=RELEASE, entry=("/no/such/program",))


def test_a_leftover_server_on_the_port_is_named_and_not_measured(
    tmp_path: Path, leftover: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixtures.serving.server.free_port", lambda: leftover)
    error = refused(tmp_path, "normal")
    assert error.cause == Cause.PORT
    assert "scripted_process.py" in str(error)
    assert str(leftover) in str(error)


def test_a_leftover_server_that_answers_for_one_that_hangs_is_noticed(
    tmp_path: Path, leftover: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port was free when looked at, and taken a moment later: readiness must not believe the answer."""
    monkeypatch.setattr("fixtures.serving.server.free_port", lambda: leftover)
    error = refused(tmp_path, "hang", deadline_s=10)
    assert error.cause == Cause.PORT
    assert "not the server that was started" in str(error)


def test_without_the_look_at_the_listener_the_leftover_would_be_taken_for_ready(
    tmp_path: Path, leftover: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: with the first proof gone, the second one, the nonce, still refuses."""
    monkeypatch.setattr("fixtures.serving.server.free_port", lambda: leftover)
    monkeypatch.setattr("fixtures.serving.readiness._refuse_strangers", lambda *_: None)
    monkeypatch.setattr("fixtures.serving.readiness.READY_LINE", "")
    monkeypatch.setattr("fixtures.serving.readiness.listeners", lambda port, family: ({1}, ""))
    error = refused(tmp_path, "hang", deadline_s=10)
    assert error.cause == Cause.WRONG_SERVER
    assert "'old'" in str(error)


def test_a_server_with_another_nonce_is_the_wrong_one(tmp_path: Path) -> None:
    error = refused(tmp_path, "other_nonce")
    assert error.cause == Cause.WRONG_SERVER


def test_a_port_lost_in_a_race_is_tried_again_elsewhere(tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    asked = deployment(tmp_path, "busy_once", SCRIPT_COUNTER=str(counter))
    with start_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY) as server:
        server.prove_identity()
    assert counter.read_text().split() == ["start", "start"]
    assert "Errno 98" in (tmp_path / "start" / "server.log").read_text()


def test_a_server_that_lost_its_port_and_does_not_end_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the port does not answer: waiting for its answer would make a hang of it."""
    monkeypatch.setattr("fixtures.serving.readiness._refuse_strangers", lambda *_: None)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        monkeypatch.setattr("fixtures.serving.server.free_port", lambda: holder.getsockname()[1])
        error = refused(tmp_path, "lost_port", deadline_s=60)
    assert error.cause == Cause.PORT
    assert "could not take port" in str(error)


def test_another_configuration_than_requested_is_no_evidence(tmp_path: Path) -> None:
    error = refused(tmp_path, "normal", options={"max_total_tokens": 2000})
    assert isinstance(error, MeasurementFailed)
    assert error.cause == Cause.DIFFERENT
    assert "max_total_tokens" in str(error)
    assert "2000" in str(error)
    assert "1000" in str(error)


def test_another_release_than_installed_is_no_evidence(tmp_path: Path) -> None:
    error = refused(tmp_path, "normal", SCRIPT_RELEASE="0.5.22")
    assert error.cause == Cause.DIFFERENT
    assert "0.5.22" in str(error)


def test_a_path_that_the_server_refused_silently_is_no_evidence(tmp_path: Path) -> None:
    path = {"symmetric memory": Evidence(active=("symm_mem is on",), refused=("communicator is not available",))}
    error = refused(tmp_path, "silent", evidence=path)
    assert isinstance(error, MeasurementFailed)
    assert error.cause == Cause.UNSUPPORTED_ARCHITECTURE
    assert "Device capability 12 not supported" in str(error)


def test_a_refusal_ends_the_start_before_the_weights_are_loaded(tmp_path: Path) -> None:
    """It would load for ever: only its first line can end it before its deadline."""
    path = {"symmetric memory": Evidence(active=("symm_mem is on",), refused=("communicator is not available",))}
    begun = time.monotonic()
    error = refused(tmp_path, "refusing", evidence=path, deadline_s=60)
    assert time.monotonic() - begun < 30
    assert error.cause == Cause.UNSUPPORTED_ARCHITECTURE
    assert "symmetric memory is refused: Device capability 12 not supported" in str(error)


def test_a_refusal_of_another_path_ends_no_start(tmp_path: Path) -> None:
    path = {"fusion": Evidence(active=("communicator is not",), refused=("fusion is off",))}
    asked = deployment(tmp_path, "silent", evidence=path)
    with start_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY) as server:
        server.check_alive()


def test_a_refusal_that_is_raised_is_told_as_what_ended_the_server(tmp_path: Path) -> None:
    error = refused(tmp_path, "raising", evidence={"fusion": Evidence(active=("on",), refused=("requires SM90",))})
    assert isinstance(error, ServerError)
    assert "exit code 3" in str(error)


def test_a_server_without_the_plugin_that_counts_is_no_evidence(tmp_path: Path) -> None:
    error = refused(tmp_path, "plugin")
    assert isinstance(error, MeasurementFailed)
    assert error.cause == Cause.HOOK
    assert "sglang_cpu" in str(error)


def test_a_path_that_the_log_does_not_show_is_no_evidence(tmp_path: Path) -> None:
    error = refused(tmp_path, "normal", evidence={"symmetric memory": Evidence(active=("symm_mem is on",))})
    assert error.cause == Cause.NOT_ACTIVE


def test_a_path_of_which_this_release_never_says_that_it_is_active_is_not_called_inactive(tmp_path: Path) -> None:
    later = Evidence(active=("symm_mem is on",), active_since="9.0.0")
    error = refused(tmp_path, "normal", evidence={"symmetric memory": later})
    assert error.cause == Cause.UNPROVEN


def test_an_exception_in_the_block_stops_the_server(tmp_path: Path) -> None:
    asked = deployment(tmp_path, "normal")
    members: set[ProcessId] = set()
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        start_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY) as server,
    ):
        members |= family(server.guarded.guard.pid)
        raise KeyboardInterrupt
    assert members
    assert gone(members, 0.5)


def test_stopping_works_when_the_guard_was_killed(tmp_path: Path) -> None:
    server = running(tmp_path)
    members = family(server.guarded.guard.pid)
    assert server.guarded.guard.send(SIGKILL)
    # The server dies with its guard; its marked child is found by the mark. The unmarked orphan has no tie
    # left.
    marked_members = {m for m in members if m.pid in marked()}
    server.stop()
    try:
        assert gone(marked_members, 2)
    finally:
        for member in members:
            member.send(SIGKILL)


def test_a_server_whose_guard_was_killed_while_it_started_is_dead(tmp_path: Path) -> None:
    """The kernel ends the server with its guard, and nobody is left to write down how."""

    def kill_guard() -> None:
        status = tmp_path / "start" / "guard.json"
        while not status.exists() or json.loads(status.read_text())["server"] is None:
            time.sleep(0.05)
        time.sleep(0.3)
        ProcessId.parse(json.loads(status.read_text())["guard"]).send(SIGKILL)

    killer = threading.Thread(target=kill_guard, daemon=True)
    killer.start()
    asked = deployment(tmp_path, "hang", deadline_s=30)
    with pytest.raises(ServerError) as caught:
        begin_server(asked, directory=tmp_path / "start", release=RELEASE, entry=ENTRY)
    killer.join(timeout=10)
    assert caught.value.cause == Cause.KILLED
    assert "it ended during start, and its guard could not tell how" in str(caught.value)
    assert "runs" not in str(caught.value)


@pytest.mark.parametrize("guard", ["killed", "stopped", "cannot write"])
def test_a_server_that_ended_unseen_by_its_guard_does_not_hang(tmp_path: Path, guard: str) -> None:
    server = running(tmp_path)
    members = family(server.guarded.guard.pid)
    try:
        if guard == "cannot write":  # as on a full disk: the status stays what it was
            server.guarded.status.parent.joinpath("guard.json").unlink()
            server.guarded.status.mkdir()
            (server.guarded.status / "full").touch()
        else:
            server.guarded.guard.send(SIGKILL if guard == "killed" else SIGSTOP)
        server.guarded.process.send(SIGKILL)
        assert gone({server.guarded.process}, 5)
        for caught in (server.failure(), server.failure(Phase.START)):
            assert caught.cause == Cause.KILLED
            assert "its guard could not tell how" in str(caught)
            assert "hang" not in str(caught)
        with pytest.raises(ServerError, match="could not tell how"):
            server.prove_identity()
    finally:
        server.guarded.guard.send(SIGCONT)
        server.stop()
        for member in members:
            member.send(SIGKILL)


def started(tmp_path: Path, script: str, tell: Callable[[str], None] = lambda step: None) -> StartRecord:
    """A start of the scripted process, measured as every start is."""
    side = Side(CANDIDATE, deployment(tmp_path, script), "cpu", RELEASE, ENTRY)
    workload = replace(load_workload("single_stream", "cpu"), requests=1, warm_up_requests=1, stall_s=2.0)
    return measure_start(Subject(side, (workload,), "r"), "stage1", 0, tmp_path / "results", tell)


@pytest.mark.parametrize(
    ("script", "cause", "said"),
    [
        ("die", Cause.EXCEPTION, "planted death"),
        ("leave", Cause.UNKNOWN, "exited with 0 without saying why"),
        ("stall", Cause.HANG, "no token for 2 s, after 0 of 80; .*: hang: it runs but stopped answering"),
    ],
)
def test_a_server_that_dies_or_hangs_in_a_workload_says_so(
    tmp_path: Path, script: str, cause: Cause, said: str
) -> None:
    """The connection that broke is not the cause, and the record has it."""
    record = started(tmp_path, script)
    assert record.status == "measurement failed"
    assert record.failure["cause"] == cause
    assert re.search(said, record.failure["message"])
    assert "\n" not in record.failure["message"]
    assert record.failure["lines"]
    assert read_records(tmp_path / "results")[0].failure == record.failure
    assert record.seconds["generating"] < 30


def test_a_server_killed_in_a_workload_is_told_as_killed(tmp_path: Path) -> None:
    def kill(step: str) -> None:
        if "warming up" in step:
            (status,) = (tmp_path / "results").glob("*/guard.json")
            ProcessId.parse(json.loads(status.read_text())["server"]).send(SIGKILL)

    record = started(tmp_path, "stall", kill)
    assert record.failure["cause"] == Cause.KILLED
    assert "killed by SIGKILL during workload" in record.failure["message"]


def test_a_workload_that_fails_on_a_server_that_lives_keeps_its_own_cause(tmp_path: Path) -> None:
    """The scripted process answers with a document where a stream belongs."""
    record = started(tmp_path, "normal")
    assert record.failure["cause"] == "truncated"
    assert "without a finish_reason" in record.failure["message"]
    assert "server.log" in record.failure["message"]


def test_a_server_killed_between_workloads_is_noticed_before_the_next(tmp_path: Path) -> None:
    server = running(tmp_path)
    server.guarded.process.send(SIGKILL)
    assert gone({server.guarded.process}, 5)
    with pytest.raises(ServerError) as caught:
        server.prove_identity()
    assert caught.value.cause == Cause.KILLED
    server.stop()
