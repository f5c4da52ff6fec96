"""A disk that fills while a run measures: the true cause, what was kept, exit 10, and nothing started in vain."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from start_cases import write_starts

from fixtures.deployments import load_box
from fixtures.deployments.stacks import stack
from fixtures.errors import RecordError, ServerError
from fixtures.gate.question import Question
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import START_BYTES, check_room, check_writable, read_records
from fixtures.report.terminal import overhead_line
from fixtures.serving.failure import Cause
from fixtures.serving.server import begin_server
from fixtures.session import measure_start as module
from fixtures.session import measurements, paired
from fixtures.session.against import Side, candidate_side
from fixtures.session.measurements import Measurements, Plan
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED
from fixtures.session.rank_starts import Ranks

CPU = load_box("cpu")
RANKS = Ranks("gloo", "cpu", 2, ())
LIMIT = 1 << 21


@pytest.fixture
def small_files():
    """No file of this process grows beyond `LIMIT` bytes: a record is too large where its metrics are many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def metrics(count: int) -> list[Metric]:
    return [Metric("decode_tok_s", 1.0, "tok/s", "timing", "higher", f"w{index}", 1) for index in range(count)]


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_files: None) -> Any:
    """`measuring(fits)`: starts whose records can be written, as often as `fits`, and then no longer."""

    def source(fits: int) -> tuple[Measurements, list[str]]:
        begun: list[str] = []

        def fill(record: StartRecord) -> None:
            begun.append(record.deployment)
            record.metrics = metrics(1 if len(begun) <= fits else 40_000)

        monkeypatch.setattr(module, "_measure", lambda subject, record, results, tell: fill(record))
        monkeypatch.setattr(
            paired, "_together", lambda plan, index, measured, show: [fill(each) for each in measured.records]
        )
        monkeypatch.setattr(
            measurements, "measure_ranks",
            lambda ranks, launchers, record, results, tell: module.written(record, results, lambda: fill(record)),
        )
        plan = Plan(
            run="r", box="cpu", stack="cpu", results=tmp_path / "results", starts=2, limit_s=None,
            side=lambda deployment: candidate_side(deployment, stack("cpu")),
            against=lambda deployment: Side("against HEAD", deployment, "cpu", "0.5.23", ("python",)),
            block_pairs=2, room=2, workloads=lambda deployment: (),
        )
        return Measurements(plan, lambda subject, step: None), begun

    return source


def test_the_cause_stands_everywhere_and_what_was_kept(measuring: Any, tmp_path: Path) -> None:
    source, begun = measuring(1)
    first = source.stage1(CPU.deployment("baseline"))
    assert [record.status for record in first] == ["ok", "measurement failed"]
    said = first[1].failure["message"]
    assert f"{first[1].id}.start.json: cannot be written (File too large)" in said
    assert f"1 start is kept in {tmp_path / 'results'} (--from-results)" in said
    for other in (CPU.deployment("eagle3"), RANKS):
        for records in (source.stage1(other), source.stage2(other, 3)):
            assert Question("baseline", "w0/decode_tok_s").answer(records, share=0.01).reason == said
    pairs = source.pairs(CPU.deployment("tp2"), 2)
    assert Question("baseline", "w0/decode_tok_s", "other side").answer(pairs, share=0.01).reason == said
    assert begun == ["baseline", "baseline"], "no server is started whose record would be lost"
    assert [record.id for record in read_records(tmp_path / "results")] == [first[0].id]
    source.close()


def test_half_a_pair_is_not_kept(measuring: Any, tmp_path: Path) -> None:
    """A folder with one side of a pair would be refused when it is read back."""
    source, begun = measuring(3)
    found = source.pairs(CPU.deployment("baseline"), 4)
    assert [record.status for pair in found for record in pair.records] == ["ok"] * 2 + ["measurement failed"] * 2
    assert "2 starts are kept" in found[1].records[0].failure["message"]
    assert len(read_records(tmp_path / "results")) == 2
    assert len(begun) == 4


def test_a_failure_before_it_is_told_too(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that the full disk ended, and its record."""
    source, _ = measuring(0)

    def die(subject: Any, record: StartRecord, results: Path, tell: Any) -> None:
        record.metrics = metrics(40_000)
        raise ServerError("baseline: its server died", "killed")

    monkeypatch.setattr(module, "_measure", die)
    said = source.stage1(CPU.deployment("baseline"))[0].failure["message"]
    assert "File too large" in said
    assert said.endswith("before that: baseline: its server died")


def test_files_that_a_start_itself_cannot_write(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks, logs, counters: an error of the system in mid-measurement is a failed measurement with its file."""
    source, _ = measuring(9)

    def full(subject: Any, record: StartRecord, results: Path, tell: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/rank.log")

    monkeypatch.setattr(module, "_measure", full)
    (record,) = source.stage1(CPU.deployment("baseline"))
    assert "/some/rank.log: the disk is full: free some space" in record.failure["message"]


def test_a_folder_that_takes_no_log_starts_no_server(tmp_path: Path) -> None:
    (tmp_path / "start").write_text("a file where the folder would be")
    with pytest.raises(ServerError, match=r"baseline: not started: .*start.*: free some space") as caught:
        begin_server(CPU.deployment("baseline"), directory=tmp_path / "start", release="0.5.23")
    assert caught.value.cause == Cause.DISK


def test_a_disk_that_is_full_already_is_told_before_anything_starts(tmp_path: Path) -> None:
    """An empty file can be made there: only bytes show it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RecordError, match="cannot be written"):
            check_writable(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_for_the_plan_is_told_before_the_first_start(tmp_path: Path) -> None:
    """The folder is not there yet: the disk is that of the nearest one that is."""
    results, starts = tmp_path / "data" / "tonight", shutil.disk_usage(tmp_path).free // START_BYTES
    check_room(results, 1)
    said = rf"^{results}: \d+ MiB are free at {tmp_path}, and {2 * starts} starts write some {16 * starts} MiB: free"
    with pytest.raises(RecordError, match=said):
        check_room(results, 2 * starts)


def test_a_run_that_finds_no_room_starts_nothing(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many starts as the plan has: two rounds of two, and the controls."""
    (tmp_path / "small.py").write_text(
        "import shutil\nfrom types import SimpleNamespace\n"
        "shutil.disk_usage = lambda path: SimpleNamespace(total=1 << 40, free=20 << 20)\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a machine lock of its own
    code, text = suite(
        "-m", "perf", "--box=cpu", "--deployment=baseline,tp2", "--starts=2", "-p", "small",
        f"--results={tmp_path / 'results'}",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    )  # fmt: skip
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text
    assert re.search(r"results: 20 MiB are free at .*, and [4-9] starts write some \d+ MiB: .* --results", text), text
    assert not (tmp_path / "results").exists()


PLUGIN = """
import errno, os
from fixtures.records.store import read_records
from fixtures.session import measure_start
from pathlib import Path

ready = iter(read_records(Path(os.environ["READY"])))
written = iter(range(100))

def fill(subject, record, results, tell):
    one = next(ready)
    record.environment, record.metrics = one.environment, one.metrics

def full(handle):
    if next(written) >= 3:  # the look at the folder, and two records
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

measure_start._measure = fill
os.fsync = full
"""


def test_a_whole_run_ends_with_10_and_the_cause(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full.py").write_text(PLUGIN)
    write_starts(tmp_path / "ready", 9)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a machine lock of its own
    code, text = suite(
        "-m", "perf", "--box=cpu", "--deployment=baseline,tp2", "--workload=single_stream", "--starts=5", "-p", "full",
        f"--results={tmp_path / 'results'}", f"--baselines={tmp_path / 'none'}", f"--html={tmp_path / 'page.html'}",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", READY=str(tmp_path / "ready"),
        COLUMNS="200",
    )  # fmt: skip
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "Traceback" not in text
    assert "no start was measured" not in text
    flat = " ".join(text.split())
    assert "the disk is full: free some space or give another folder with --results" in flat
    assert "1 start is kept" in flat
    assert "--html not written" in flat
    assert len(list((tmp_path / "results").glob("*.start.json"))) == 1
    assert json.loads(next((tmp_path / "results").glob("*.start.json")).read_text())["status"] == "ok"


def test_an_interrupted_start_is_no_time_of_the_suites_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measuring: Any
) -> None:
    """Ctrl-C in the first start: no record has its time."""
    source, _ = measuring(9)
    clock = iter([100.0, 186.0])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_measure", interrupted)
    monkeypatch.setattr(measurements, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(KeyboardInterrupt):
        source.stage1(CPU.deployment("baseline"))
    line = overhead_line(87.0, source.all_records(), source.cut_short)
    assert line == "time: 87 s = 86 s in a start that was interrupted + 1.0 s of its own (1.1%)"


def test_a_run_that_began_nothing_adds_up() -> None:
    line = overhead_line(2.0, [], 0.0)
    assert line == "time: 2 s = 2.0 s of its own (100.0%)"
