"""`kill -9` of a perf run: no server is left, what was measured is whole, and a night goes on from wherever it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


def reached(phase: str, results: Path, before: frozenset[str]) -> bool:
    """Whether a run is in a phase, by what it adds to the names that were in its folder before."""
    new = {path.name for path in results.glob("*")} - before
    kept = {name.removesuffix(SUFFIX) for name in new if name.endswith(SUFFIX)}
    logs = [results / name / "server.log" for name in new if name not in kept]
    open_log = "".join(log.read_text(errors="replace") for log in logs if log.exists())
    match phase:
        case "loading":
            return bool(open_log)
        case "serving":
            return "POST /generate" in open_log
        case "record kept":
            return bool(kept)
    return bool(kept and open_log)  # the next one loads


@pytest.mark.timeout(1500)
def test_a_night_killed_in_every_phase_goes_on_where_it_was(tmp_path, pytestconfig):
    """Nothing measured is lost or counted twice, and the verdicts are those of its records."""
    results, judged = tmp_path / "results", {}

    def command(*options: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-m", "perf", "-q", "-p", "no:cacheprovider", "--box=cpu",
                "--deployment=baseline,eagle3", "--workload=single_stream", f"--baselines={tmp_path / 'none'}",
                *options]

    def goes_on() -> str:
        return f"--resume={results}" if any(results.glob(f"*{SUFFIX}")) else f"--results={results}"

    kept: dict[str, bytes] = {}
    for phase in ("loading", "serving", "record kept", "next one loading"):
        before = frozenset(path.name for path in results.glob("*"))
        run = subprocess.Popen(
            command("--starts=2", "--seed=1", goes_on()), cwd=pytestconfig.rootpath, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )
        try:
            wait_for(phase, lambda p=phase, b=before: reached(p, results, b), START_S)
            assert run.poll() is None, phase
        finally:
            os.kill(run.pid, signal.SIGKILL)
            run.wait(10)
        wait_for("the servers' end", lambda p=run.pid: not marked(p), GONE_S)
        kept |= {path.name: path.read_bytes() for path in results.glob(f"*{SUFFIX}")}
    for name, how in {"resumed": ("--starts=2", goes_on()), "judged again": (f"--from-results={results}",)}.items():
        done = subprocess.run(
            command(*how, f"--jsonl={tmp_path / name}"), cwd=pytestconfig.rootpath, capture_output=True, text=True,
            timeout=900,
        )
        assert done.returncode in (0, 1), done.stdout
        lines = map(json.loads, (tmp_path / name).read_text().splitlines())
        judged[name] = {(line["deployment"], line["key"]): line["verdict"] for line in lines if "verdict" in line}
    assert kept
    assert kept.items() <= {path.name: path.read_bytes() for path in results.glob(f"*{SUFFIX}")}.items()
    records = read_records(results)
    numbers = [each.night.number for each in records if each.night]
    assert len(numbers) == len(set(numbers))
    assert {each.deployment for each in records} == {"baseline", "eagle3"}
    assert judged["resumed"] == judged["judged again"]
    assert judged["resumed"]["eagle3", "single_stream/decode_tok_s"] in ("improvement", "too noisy to tell")
