"""The next load waits until the last server has given back what it held, and says who does not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from serving_cases import ENTRY, RELEASE, deployment, gone

from fixtures.errors import ServerError
from fixtures.serving import freed, launch
from fixtures.serving.failure import Cause
from fixtures.serving.freed import GpuUse, gpu_use, wait_freed
from fixtures.serving.processes import ProcessId
from fixtures.serving.server import begin_server

GIB = 1 << 30


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def test_nothing_in_use_waits_for_nothing():
    assert wait_freed("arm", (), lambda: [GpuUse(0, GIB)]) < 1


def test_memory_that_comes_back_is_waited_for():
    """As the driver returns it: 90 GiB, then some of it, then all."""
    readings = [[GpuUse(0, 90 * GIB, (1,))], [GpuUse(0, 30 * GIB)], [GpuUse(0, GIB // 2)]]
    wait_freed("arm", (), lambda: readings.pop(0), limit_s=30)
    assert readings == []


def test_memory_that_stays_is_told_with_who_holds_it(sleeper):
    held = [GpuUse(3, 42 * GIB, (sleeper.pid,)), GpuUse(4, 3 * GIB)]
    said = rf"not started: 0\.3 s .*GPU 3: 42\.0 GiB, held by process {sleeper.pid} \(.*python.*GPU 4: .*not seen"
    with pytest.raises(ServerError, match=said) as failed:
        wait_freed("arm", (), lambda: held, limit_s=0.3)
    assert failed.value.cause == Cause.OUT_OF_MEMORY


def test_a_process_that_a_stop_did_not_end_is_waited_for(sleeper):
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    with pytest.raises(ServerError, match=rf"process {sleeper.pid} .* still runs"):
        wait_freed("arm", [process], list, limit_s=0.3)
    threading.Timer(0.3, sleeper.kill).start()
    wait_freed("arm", [process], list, limit_s=30)


def test_a_server_is_not_loaded_beside_what_is_left_of_the_last_one(tmp_path, monkeypatch, sleeper):
    process = ProcessId.of(sleeper.pid)
    monkeypatch.setattr(launch, "STOP_LIMIT_S", 1.0)
    monkeypatch.setattr(freed, "_POLL_S", 0.01)
    server = begin_server(deployment(tmp_path, "normal"), directory=tmp_path / "one", release=RELEASE, entry=ENTRY)
    monkeypatch.setattr(launch.Guarded, "members", lambda _self: {process} if process.alive else set())
    monkeypatch.setattr(launch, "kill", lambda _members: None)
    server.stop()
    assert launch.outlived == {process}
    monkeypatch.undo()
    threading.Timer(1.0, sleeper.kill).start()
    begun = time.monotonic()
    second = begin_server(deployment(tmp_path, "normal"), directory=tmp_path / "two", release=RELEASE, entry=ENTRY)
    second.stop()
    assert time.monotonic() - begun > 0.9
    launch.outlived.clear()
    assert gone({server.guarded.process}, 5)


def test_this_machine_can_be_asked():
    assert all(use.used >= 0 for use in gpu_use())
