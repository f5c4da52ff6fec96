"""The next load waits until the last server has given back what it held, and says who does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import create_autospec

import pynvml
import pytest
from serving_cases import ENTRY, RELEASE, deployment, gone

from fixtures.deployments import load_box
from fixtures.deployments.stacks import stack
from fixtures.errors import ServerError
from fixtures.serving import freed, launch
from fixtures.serving.failure import Cause
from fixtures.serving.freed import GpuUse, gpu_use, wait_freed
from fixtures.serving.processes import ProcessId
from fixtures.serving.server import begin_server
from fixtures.session import run as run_module
from fixtures.session.run import Run

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
    said = rf"not started: .*0\.3 s .*GPU 3: 43008 MiB in use, held by process {sleeper.pid} .*python.*GPU 4.*not seen"
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


@pytest.fixture
def nvml(monkeypatch):
    """Four GPUs, GPU 2 with another's process, below the signatures of the installed binding."""
    used = {0: GIB // 2, 1: GIB // 2, 2: 42 * GIB, 3: 3 * GIB}

    def processes(gpu):
        if gpu == 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)] if gpu == 2 else []

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(used),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}{gpu}",
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetMemoryInfo": lambda gpu, version=None: SimpleNamespace(used=used[gpu]),
    }.items():
        monkeypatch.setattr(pynvml, name, create_autospec(getattr(pynvml, name), side_effect=answer))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return used


def test_the_driver_says_what_is_in_use_of_the_gpus_that_a_server_would_see(nvml, monkeypatch):
    assert gpu_use() == [
        GpuUse(0, GIB // 2), GpuUse(1, GIB // 2), GpuUse(2, 42 * GIB, (os.getpid(),)), GpuUse(3, 3 * GIB)
    ]
    for visible, seen in {"0,1": [0, 1], "GPU-22, 3": [2, 3], "": []}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [use.gpu for use in gpu_use()] == seen


def run_of(box: str, folder, name: str) -> Run:
    """A run that is about to make its first start, of this deployment."""
    options = SimpleNamespace(from_results=None, results=folder / "results")
    run = Run(options, load_box(box), "", stack("cpu"), (), [], measured={name})
    run._source = object()
    return run


def test_a_gpu_that_somebody_uses_is_told_before_the_first_start(nvml, monkeypatch, tmp_path):
    monkeypatch.setattr(run_module, "_OTHERS_S", 0.3)
    said = (
        rf"^this run: not started: .* GPU 2: 43008 MiB in use, held by process {os.getpid()} \(.+\); "
        r"GPU 3: 3072 MiB in use, held by a process not seen from here: end it, or wait for it$"
    )
    with pytest.raises(ServerError, match=said):
        run_of("pcie_blackwell", tmp_path, "eagle3").open()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    run_of("pcie_blackwell", tmp_path, "eagle3").open()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    run_of("cpu", tmp_path, "eagle3").open()  # who measures on the processor may have a display
