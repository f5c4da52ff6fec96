"""Two perf runs never measure at once, whoever runs them, and a dead one leaves no lock behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from fixtures.errors import SuiteError
from fixtures.session.machine_lock import MachineLock

HOLDER = """
import os, sys, time
from fixtures.session.machine_lock import MachineLock
lock = MachineLock(sys.argv[1])
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""
NOBODY = 65534


@pytest.fixture
def name() -> str:
    """A lock that no perf run on this machine takes."""
    return f"sglang-pcie-perf-test-{secrets.token_hex(6)}"


@pytest.fixture
def holder(name: str, pytestconfig: pytest.Config) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`holder(*more)`: another process that holds the lock."""
    started = []

    def start(*more: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, name, *more], cwd=pytestconfig.rootpath, stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def test_a_second_run_is_told_who_has_the_machine_and_since_when(name, holder, tmp_path):
    """Wherever that one keeps its temporary files."""
    other = holder(TMPDIR=str(tmp_path))
    with pytest.raises(SuiteError, match=rf"process {other.pid}, since 20\d\d-\d\d-\d\dT"):
        MachineLock(name).acquire()


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's identity")
def test_a_run_of_another_user_has_the_machine_too(name, holder):
    other = holder(str(NOBODY))
    with pytest.raises(SuiteError, match=rf"process {other.pid} of user \w+, since 20"):
        MachineLock(name).acquire()


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's identity")
def test_another_user_is_refused_and_can_take_it_later(name, holder):
    mine = MachineLock(name)
    mine.acquire()
    with pytest.raises(AssertionError):  # it ends without a word
        holder(str(NOBODY))
    mine.release()
    holder(str(NOBODY))


def test_a_killed_run_leaves_the_machine_free(name, holder):
    other = holder()
    os.kill(other.pid, signal.SIGKILL)
    other.wait(10)
    deadline = time.monotonic() + 10
    lock = MachineLock(name)
    while True:
        try:
            lock.acquire()
            break
        except SuiteError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    lock.release()


def test_released_it_is_free_for_another_and_that_ones_alone(name):
    first, second = MachineLock(name), MachineLock(name)
    first.acquire()
    with pytest.raises(SuiteError, match=f"process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    first.release()  # again: it holds nothing that it could give away
    with pytest.raises(SuiteError, match=f"process {os.getpid()}"):
        first.acquire()
    second.release()


def test_a_program_that_a_run_starts_does_not_keep_its_lock(name):
    """A server that outlives a killed run must not block the next one."""
    lock = MachineLock(name)
    lock.acquire()
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        lock.release()
        again = MachineLock(name)
        again.acquire()
        again.release()
        child.communicate(b"\n")
