"""`kill -9` of the run leaves no server behind. Planted fault: a guard that watches nobody does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import pytest
from serving_cases import gone, marked

from fixtures.serving.launch import ROOT, find_leftovers, sweep
from fixtures.serving.processes import ProcessId, family

pytestmark = pytest.mark.timeout(90)

RUN = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
sys.path[:0] = [{root!r}, {here!r}]
from serving_cases import ENTRY, RELEASE, deployment
from fixtures.serving import server
from fixtures.serving.processes import ProcessId
folder = Path({folder!r})
asked = deployment(folder, "normal")
{before}
with server.start_server(asked, directory=folder / "start", release=RELEASE, entry=ENTRY) as running:
    print(running.guarded.guard, flush=True)
    time.sleep(600)
"""
WATCH_NOBODY = """
launch = server.launch
server.launch = lambda argv, **given: launch(argv, **{**given, "watch": []})
"""


class Run:
    """A run of its own, with one server that is up."""

    def __init__(self, folder: Path, before: str = "") -> None:
        folder.mkdir()
        code = RUN.format(root=str(ROOT), here=str(Path(__file__).parent), folder=str(folder), before=before)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.scratch)},
        )
        assert self.process.stdout is not None
        found = ProcessId.of(self.process.pid)
        assert found is not None
        self.id = found
        self.guard = ProcessId.parse(self.process.stdout.readline().strip())
        self.members = family(self.guard.pid) | {self.guard}
        assert len(self.members) == 4, "guard, server, its child, its orphan"

    def end(self, number: Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()


def emptied(folder: Path, within_s: float = 3.0) -> bool:
    """A sweep of another run may meet the guard while it clears up, and then does that itself, a moment later."""
    begun = time.monotonic()
    while any(folder.iterdir()) and time.monotonic() - begun < within_s:
        time.sleep(0.05)
    return not any(folder.iterdir())


def test_killing_the_run_twice_in_a_row_leaves_nothing(tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        run = Run(tmp_path / attempt)
        run.end(SIGKILL)
        assert gone(run.members, 3), attempt
        assert not marked(run.id)
        assert emptied(run.scratch), "temporary files of the server"


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_a_run_that_is_interrupted_or_terminated_leaves_nothing(tmp_path: Path, number: Signals) -> None:
    run = Run(tmp_path / "run")
    run.end(number)
    assert gone(run.members, 3)


def test_a_guard_that_watches_nobody_leaves_a_server_which_the_sweep_finds(tmp_path: Path) -> None:
    """The planted fault of the test above, and the second line of defence."""
    run = Run(tmp_path / "run", before=WATCH_NOBODY)
    assert not [one for one in find_leftovers() if one.mark.owner == run.id], "its run is still alive"
    run.end(SIGKILL)
    time.sleep(1)
    assert all(member.alive for member in run.members)
    left = [one.process for one in find_leftovers() if one.mark.owner == run.id]
    assert run.guard in left
    swept = [one.process for one in sweep(grace_s=0) if one.mark.owner == run.id]
    assert run.guard in swept
    try:
        marked_members = set(left)
        assert gone(marked_members, 3)
        assert emptied(run.scratch), "temporary files of the server"
    finally:
        for member in run.members:
            member.send(SIGKILL)


def test_the_sweep_spares_the_servers_of_runs_that_are_alive(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    try:
        swept = [one for one in sweep(grace_s=0) if one.mark.owner == run.id]
        assert not swept
        assert all(member.alive for member in run.members)
    finally:
        run.end(SIGKILL)
    assert gone(run.members, 3)
