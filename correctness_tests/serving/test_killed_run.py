"""`kill -9` of a perf run in the middle, twice in a row: no server is left, and what was measured is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from fixtures.records.store import SUFFIX, read_records
from fixtures.serving.launch import MARK, Mark

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.xdist_group("killed run")]

START_S = 400
GONE_S = 30


def marked(run_pid: int) -> list[psutil.Process]:
    """Processes that carry the mark of a server of this run, whatever became of their parents."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK)
        except psutil.Error:
            continue
        if mark and Mark.parse(mark).owner.pid == run_pid:
            found.append(process)
    return found


def wait_for(what: str, happened, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.2)


@pytest.mark.timeout(900)
def test_a_killed_run_leaves_no_server_and_whole_records(tmp_path, pytestconfig):
    command = [
        sys.executable, "-m", "pytest", "-m", "perf", "-q", "-p", "no:cacheprovider", "--box=cpu",
        "--deployment=baseline", "--workload=single_stream", "--starts=3", f"--baselines={tmp_path / 'none'}",
    ]
    for attempt in (1, 2):
        results = tmp_path / f"results{attempt}"
        run = subprocess.Popen(
            [*command, f"--results={results}"], cwd=pytestconfig.rootpath, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )
        try:
            # The first start is finished and the second server is up: then the run dies without a word.
            wait_for("first record", lambda r=results: any(r.glob(f"*{SUFFIX}")), START_S)
            wait_for("second server", lambda r=results: len(list(r.glob("*/server.log"))) == 2, START_S)
            assert run.poll() is None
            wait_for("its process", lambda p=run.pid: len(marked(p)) > 0, 30)
        finally:
            os.kill(run.pid, signal.SIGKILL)
            run.wait(10)
        wait_for("the servers' end", lambda p=run.pid: not marked(p), GONE_S)
        (record,) = read_records(results)
        assert record.status == "ok"
        assert record.metric("single_stream/decode_tok_s").usable
