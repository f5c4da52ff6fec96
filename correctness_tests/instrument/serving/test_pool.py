"""One session, several xdist workers, each deployment started once; and nothing left when the session ends
or is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from signal import SIGKILL

import pytest
from serving_cases import ENTRY, RELEASE, deployment, gone, marked

from fixtures.errors import ServerError
from fixtures.serving.failure import Cause
from fixtures.serving.launch import ROOT
from fixtures.serving.pool import Limits, ServerPool
from fixtures.serving.processes import ProcessId, family
from fixtures.serving.server import Server, begin_server

pytestmark = pytest.mark.timeout(120)

HERE = Path(__file__).parent

INNER_CONFTEST = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
import pytest
from functools import partial
from fixtures.serving import pool, pool_plugin
from serving_cases import ENTRY, RELEASE, deployment

pytest_plugins = ["fixtures.serving.pool_plugin"]

pool.begin_server = partial(pool.begin_server, release=RELEASE, entry=ENTRY)

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.stash[pool_plugin.DIRECTORY] = Path({folder!r}) / "servers"

@pytest.fixture
def server(server_pool, request):
    folder, name = Path({folder!r}), request.param
    asked = deployment(folder, "normal", name=name, SCRIPT_COUNTER=str(folder / (name + ".starts")))
    with server_pool.use(asked) as running:
        running.prove_identity()
        (folder / (name + ".pid")).write_text(str(running.guarded.guard))
        yield running
"""
INNER_TEST = """
import time
import pytest

@pytest.mark.parametrize("number", range({numbers}))
@pytest.mark.parametrize("server", ["one", "two"], indirect=True)
def test_it(server, number):
    server.check_alive()
    time.sleep({seconds})
"""


def inner(folder: Path, *arguments: str, seconds: float = 0.1, numbers: int = 3) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "conftest.py").write_text(INNER_CONFTEST.format(root=str(ROOT), here=str(HERE), folder=str(folder)))
    (folder / "test_inner.py").write_text(INNER_TEST.format(seconds=seconds, numbers=numbers))
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *arguments,
    ]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def starts(folder: Path) -> dict[str, int]:
    return {path.stem: len(path.read_text().split()) for path in folder.glob("*.starts")}


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "load")], ids=["alone", "two workers"])
def test_each_deployment_is_started_once_for_all_tests(tmp_path: Path, workers: tuple[str, ...]) -> None:
    folder = tmp_path / "inner"
    run = inner(folder, *workers)
    me = ProcessId.of(run.pid)
    output, _ = run.communicate(timeout=80)
    assert run.returncode == 0, output
    assert "6 passed" in output
    assert starts(folder) == {"one": 1, "two": 1}
    assert not marked(me)
    state = json.loads((folder / "servers" / "pool.json").read_text())
    assert state["closed"]
    assert (folder / "servers" / "one" / "server.log").read_text()


def test_killing_the_controller_twice_in_a_row_leaves_no_server(tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        run = inner(folder, "-n", "2", "--dist", "load", seconds=60, numbers=1)
        assert run.stdout is not None
        members: set[ProcessId] = set()
        end = time.monotonic() + 60
        while len(members) < 8 and run.poll() is None and time.monotonic() < end:
            guards = [ProcessId.parse(path.read_text()) for path in folder.glob("*.pid") if path.read_text()]
            members = set().union(*({guard} | family(guard.pid) for guard in guards))
            time.sleep(0.05)
        assert len(members) == 8, "two servers with their guard and two children each"
        run.send_signal(SIGKILL)
        run.stdout.close()
        run.wait(timeout=20)
        assert gone(members, 3), attempt


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ServerPool]]:
    monkeypatch.setattr("fixtures.serving.pool.begin_server", partial(begin_server, release=RELEASE, entry=ENTRY))
    made = []

    def make(**limits: object) -> ServerPool:
        limited = Limits(free_gib=0, **limits)  # type: ignore[arg-type]
        own = ServerPool(tmp_path / "servers", owner=ProcessId.own(), limits=limited)
        made.append(own)
        return own

    yield make
    for one in made:
        one.close()
    assert not marked()


def test_an_idle_server_gives_way_and_is_started_again_when_needed(
    tmp_path: Path, pool: Callable[..., ServerPool]
) -> None:
    servers = pool(servers=1)
    one, two = (deployment(tmp_path, "normal", name=name) for name in ("one", "two"))
    with servers.use(one) as first:
        pass
    with servers.use(one) as again:
        assert again.guarded.process.pid == first.guarded.process.pid
    with servers.use(two):
        assert not first.guarded.running
    with servers.use(one) as third:
        third.prove_identity()
    assert servers.starts() == {"one": 2, "two": 1}


def test_more_servers_at_once_than_may_run_is_said_at_once(tmp_path: Path, pool: Callable[..., ServerPool]) -> None:
    servers = pool(servers=1)
    one, two = (deployment(tmp_path, "normal", name=name) for name in ("one", "two"))
    with (
        servers.use(one),
        pytest.raises(ServerError, match="needs 2 servers at once") as caught,
        servers.use(two),
    ):
        pass
    assert caught.value.cause == Cause.CONFIGURATION


def test_too_little_memory_is_said_before_a_start(tmp_path: Path, pool: Callable[..., ServerPool]) -> None:
    servers = pool()
    servers.limits = Limits(free_gib=1e6)
    with (
        pytest.raises(ServerError, match="1e\\+06 GiB are needed") as caught,
        servers.use(deployment(tmp_path, "normal")),
    ):
        pass
    assert caught.value.cause == Cause.OUT_OF_MEMORY


def test_a_start_that_failed_is_not_tried_again_for_each_test(tmp_path: Path, pool: Callable[..., ServerPool]) -> None:
    counter = tmp_path / "starts"
    asked = deployment(tmp_path, "exit", SCRIPT_COUNTER=str(counter))
    messages = set()
    for _ in range(2):
        with pytest.raises(ServerError) as caught, pool().use(asked):
            pass
        messages.add((str(caught.value), caught.value.cause, caught.value.lines))
    assert len(messages) == 1
    assert counter.read_text().split() == ["start"]


def test_a_start_that_was_interrupted_is_made_by_the_next_who_asks(
    tmp_path: Path, pool: Callable[..., ServerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, asked = pool(), deployment(tmp_path, "normal")
    with monkeypatch.context() as patched:
        patched.setattr("fixtures.serving.pool.begin_server", interrupted)
        with pytest.raises(KeyboardInterrupt), servers.use(asked):
            pass
    with servers.use(asked) as server:
        server.prove_identity()
    assert servers.starts() == {"scripted": 1}


def interrupted(*_: object, **given: object) -> Server:
    raise KeyboardInterrupt


def test_a_server_that_died_is_started_again(tmp_path: Path, pool: Callable[..., ServerPool]) -> None:
    servers = pool()
    asked = deployment(tmp_path, "normal")
    with servers.use(asked) as first:
        first.guarded.process.send(SIGKILL)
        assert gone({first.guarded.process}, 5)
    with servers.use(asked) as second:
        second.prove_identity()
    assert servers.starts() == {"scripted": 2}


def test_two_users_at_the_same_time_get_one_server(tmp_path: Path, pool: Callable[..., ServerPool]) -> None:
    asked = deployment(tmp_path, "normal")
    seen = []

    def use(own: ServerPool) -> None:
        with own.use(asked) as server:
            seen.append(server.guarded.process.pid)

    threads = [threading.Thread(target=use, args=(pool(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_nothing_starts_once_the_session_has_ended(tmp_path: Path, pool: Callable[..., ServerPool]) -> None:
    servers = pool()
    servers.close()
    with pytest.raises(ServerError, match="session has ended"), servers.use(deployment(tmp_path, "normal")):
        pass
