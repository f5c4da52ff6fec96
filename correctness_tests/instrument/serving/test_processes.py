"""What the failure handling stands on: processes that are told apart for certain, and requests that always end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from signal import SIGKILL

import pytest

from fixtures.serving.launch import Mark
from fixtures.serving.processes import ProcessId, family, holders, listening_inodes, mark_of
from fixtures.serving.readiness import Unreachable, request

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose name, as /proc/PID/stat shows it, has brackets and blanks."""
    rename = "open('/proc/self/comm', 'w').write('a) S 1 (b'); "
    code = f"{rename}print(1, flush=True); import time; time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdout=subprocess.PIPE,
        env={"MARKED": "x"},
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_with_an_awkward_name_is_read_right(sleeper: subprocess.Popen[bytes]) -> None:
    found = ProcessId.of(sleeper.pid)
    assert found is not None
    assert found.alive
    assert found in family(os.getpid())
    assert ProcessId.parse(str(found)) == found
    assert mark_of(sleeper.pid, "MARKED") == "x"
    assert mark_of(sleeper.pid, "MARK") is None


def test_a_pid_that_was_used_again_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    found = ProcessId.of(sleeper.pid)
    assert found is not None
    before = ProcessId(found.pid, found.start - 1)
    assert not before.alive
    assert not before.send(SIGKILL)
    assert found.alive, "the signal went to the process that has the pid now"


def test_a_zombie_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    found = ProcessId.of(sleeper.pid)
    assert found is not None
    assert found.send(SIGKILL)
    end = time.monotonic() + 10
    while found.alive and time.monotonic() < end:
        time.sleep(0.01)
    assert not found.alive, "nobody has waited for it yet"


def test_a_mark_survives_its_text() -> None:
    mark = Mark.new(ProcessId.own())
    assert Mark.parse(str(mark)) == mark
    assert Mark.new(ProcessId.own()) != mark
    with pytest.raises(ValueError, match="not enough values"):
        Mark.parse("nonsense")


@pytest.mark.parametrize(("kind", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_listener_of_a_port_is_found_and_nobody_elses(kind: socket.AddressFamily, address: str) -> None:
    with socket.socket(kind) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = listener.getsockname()[1]
        assert not listening_inodes(port), "bound, but it does not listen"
        listener.listen()
        inodes = listening_inodes(port)
        assert len(inodes) == 1
        assert holders(inodes, [os.getpid(), 1]) == {os.getpid()}
        assert holders(inodes, [1]) == set()
    assert not listening_inodes(port)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Answer one connection with a function; gives the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threads = []

        def start(answer: Callable[[socket.socket], None]) -> int:
            def run() -> None:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        answer(connection)
                except OSError:
                    pass

            threads.append(threading.Thread(target=run, daemon=True))
            threads[-1].start()
            port: int = listener.getsockname()[1]
            return port

        yield start
    for thread in threads:
        thread.join(timeout=10)


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(100):
        connection.sendall(b"x")
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (trickle, "no answer"),
        (lambda connection: time.sleep(3), "no answer"),
        (lambda connection: connection.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n"), "BadStatusLine"),
        (lambda connection: None, "RemoteDisconnected"),
    ],
    ids=["trickles", "is silent", "is not HTTP", "hangs up"],
)
def test_a_request_ends_within_its_limit_whatever_the_server_does(
    serve: Callable[[Callable[[socket.socket], None]], int],
    answer: Callable[[socket.socket], None],
    said: str,
) -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=said):
        request(serve(answer), "/x", timeout_s=1)
    assert time.monotonic() - begun < 2.5


def test_a_body_that_is_no_json_is_said(serve: Callable[[Callable[[socket.socket], None]], int]) -> None:
    port = serve(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"))
    answer = request(port, "/x", timeout_s=5)
    assert answer.status == 200
    with pytest.raises(Unreachable, match="no JSON"):
        answer.json()


def test_nobody_listening_is_said() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="ConnectionRefused"):
            request(bound.getsockname()[1], "/x", timeout_s=5)
