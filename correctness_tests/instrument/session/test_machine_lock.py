"""Two perf runs never measure at once, and a dead one leaves no lock behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fixtures.errors import SuiteError
from fixtures.session.machine_lock import MachineLock

HOLDER = """
import sys, time
from pathlib import Path
from fixtures.session.machine_lock import MachineLock
lock = MachineLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path, pytestconfig):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")], cwd=pytestconfig.rootpath, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait(10)


def test_a_second_run_is_told_who_has_the_machine(tmp_path, holder):
    with pytest.raises(SuiteError, match=f"process {holder.pid}, since 20"):
        MachineLock(tmp_path / "lock").acquire()


def test_a_killed_run_leaves_the_machine_free(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(10)
    deadline = time.monotonic() + 10
    lock = MachineLock(tmp_path / "lock")
    while True:
        try:
            lock.acquire()
            break
        except SuiteError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    lock.release()


def test_released_it_is_free_for_another_and_that_ones_alone(tmp_path):
    first, second = MachineLock(tmp_path / "lock"), MachineLock(tmp_path / "lock")
    first.acquire()
    with pytest.raises(SuiteError, match=f"process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    first.release()  # again: it holds nothing that it could give away
    with pytest.raises(SuiteError, match=f"process {os.getpid()}"):
        first.acquire()
    second.release()
    assert not (tmp_path / "lock.holder.json").exists()


def test_a_holder_that_cannot_say_its_name_still_has_the_machine(tmp_path):
    """On a full disk the file beside the lock cannot be written."""
    (tmp_path / "lock.holder.json").mkdir()
    lock = MachineLock(tmp_path / "lock")
    lock.acquire()
    with pytest.raises(SuiteError, match=f"lock {tmp_path / 'lock'}"):
        MachineLock(tmp_path / "lock").acquire()
    (tmp_path / "lock.holder.json").rmdir()
    lock.release()
