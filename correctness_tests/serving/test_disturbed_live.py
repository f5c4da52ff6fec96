"""A real server while something disturbs it: what the record of a start names, and whether it would count.

Prints case × named × marked × false marks. The quiet starts are only quiet on a machine that is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fixtures.deployments import load_box
from fixtures.deployments.stacks import load_stacks
from fixtures.records.start import StartRecord
from fixtures.serving.client import measure_workload
from fixtures.serving.workloads import load_workload
from fixtures.session.against import candidate_side
from fixtures.session.measure_start import new_record, not_counted
from fixtures.session.served import open_server, watched
from fixtures.weather.series import SAMPLES

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.alone, pytest.mark.xdist_group("disturbed")]

TRIES = int(os.environ.get("DISTURBED_TRIES", "5"))
HOG = "while True: pass"
STRESS = "held = bytearray(1 << 29)\nwhile True: held[:] = bytes(len(held))"
FREEZER = """
import os, signal, sys, time
time.sleep(2)
os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(1.4)
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""
START = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdin=-3, stdout=-3, stderr=-3).pid)"


@contextmanager
def stranger(folder: Path, name: str, code: str, *arguments: str) -> Iterator[None]:
    """A process of this name that did not come from this run, as far as /proc tells: the one that started it ended."""
    if not (program := folder / name).exists():
        program.symlink_to(sys.executable)
    command = [sys.executable, "-S", "-c", START, str(program), "-S", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    pid = int(done.stdout)
    try:
        yield
    finally:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()


@contextmanager
def quiet(folder: Path) -> Iterator[None]:
    yield


CASES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "quiet": (quiet, "", ""),
    "a hog on one core": (lambda folder: stranger(folder, "hog", HOG), "foreign CPU work", "hog "),
    "stress on memory": (lambda folder: stranger(folder, "stress", STRESS), "foreign CPU work", "stress "),
    "a client frozen for 1.4 s": (
        lambda folder: stranger(folder, "freezer", FREEZER, str(os.getpid())), "the client", "stood still for 1.4 s"
    ),
}
"""What disturbs, the rule that names it, and what it says."""


@pytest.mark.timeout(1800)
def test_what_disturbs_a_start_is_named_and_a_quiet_one_is_not(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    side = candidate_side(load_box("cpu").deployment("baseline"), load_stacks()["cpu"])
    workload = replace(load_workload("single_stream", "cpu"), warm_up_requests=1)
    named, marked, others, texts = Counter[str](), Counter[str](), Counter[str](), dict[str, str]()
    with ExitStack() as stack:
        server = open_server(stack, side, new_record(side, "stage1", 0, "r"), [workload], tmp_path)
        samples, kept = server.log_path.with_name(SAMPLES), tmp_path / "kept.jsonl"
        os.link(samples, kept)  # a record takes the file away, and here one server serves many
        for _ in range(TRIES):
            for case, (disturb, kind, words) in CASES.items():
                record: StartRecord = new_record(side, "stage1", 0, "r")
                time.sleep(2)
                if not samples.exists():
                    os.link(kept, samples)
                with disturb(tmp_path), watched(record, server) as ended:
                    result = measure_workload(server.url, workload)
                    ended(result)
                    record.serve(result)
                    time.sleep(1.5)  # as after every workload: its last second is sampled
                kinds = {each.kind for each in record.disturbed}
                texts[case] = "; ".join(each.text for each in record.disturbed)
                named[case] += kind in kinds and words in texts[case]
                marked[case] += not_counted(record, []) is not None
                others[case] += bool(kinds - {kind, "the client"}) if kind else bool(kinds)
    with capsys.disabled():
        print(f"\n{'case':28}{'named':>8}{'marked':>8}{'false':>8}  of {TRIES}")
        for case in CASES:
            print(f"{case:28}{named[case]:8}{marked[case]:8}{others[case]:8}  {texts[case]}")
    for case, (_, kind, _) in CASES.items():
        if kind:
            assert named[case] == marked[case] == TRIES, texts[case]
    assert others["quiet"] == 0, f"on a quiet machine: {texts['quiet']}"
