"""The sampler on this machine, in the guard of a process that serves nothing: what it sees, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fixtures.serving.launch import Guarded, Mark, launch
from fixtures.serving.processes import ProcessId
from fixtures.weather.host import Host
from fixtures.weather.sampler import SHARES, Paced, Sampler
from fixtures.weather.series import Sample, Window, read_samples, weather_of

COST = 0.005
"""Most of one core that sampling may take."""
BUSY = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
pytestmark = pytest.mark.timeout(90)


@contextmanager
def guarded(folder: Path, weather: Path | None) -> Iterator[Guarded]:
    """A sleeping process under a guard that samples into `weather`."""
    folder.mkdir()
    found = launch(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], mark=Mark.new(ProcessId.own()), environment={},
        log=folder / "log", status=folder / "status.json", watch=[ProcessId.own()], weather=weather,
    )  # fmt: skip
    try:
        yield found
    finally:
        found.stop()


def sampled(path: Path, least: int) -> list[Sample]:
    deadline = time.monotonic() + 30
    while len(found := read_samples(path)) < least:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_work_of_a_process_that_is_not_ours_is_named_and_our_own_is_not(tmp_path: Path) -> None:
    """Ours is what came from this process; the stranger's parent ended, so it came from nobody here."""
    stranger = tmp_path / "stranger"
    stranger.symlink_to(sys.executable)
    silent = "stdin=-3, stdout=-3, stderr=-3, start_new_session=True"
    start = f"import subprocess; print(subprocess.Popen([{str(stranger)!r}, '-S', '-c', {BUSY!r}], {silent}).pid)"
    began = time.monotonic()
    pid = int(subprocess.run([sys.executable, "-S", "-c", start], capture_output=True, text=True, check=True).stdout)
    try:
        with guarded(tmp_path / "g", tmp_path / "weather.jsonl"):
            samples = sampled(tmp_path / "weather.jsonl", 6)
    finally:
        psutil.Process(pid).kill()
    found = weather_of(samples, {"w": [Window(began, time.monotonic())]})
    assert found is not None
    here = found.workloads["w"]
    assert here.foreign.get("stranger", 0.0) > 0.1
    assert here.summary["foreign_cores"].mean >= here.foreign["stranger"] * 0.99
    assert {"load", "busy_cores", "own_cores", "steal_cores", "page_cache_gib", "clock_back_s"} <= {*here.summary}
    assert found.cores == psutil.cpu_count()


def test_it_ends_with_the_server_and_a_folder_that_goes_does_not_end_the_guard(tmp_path: Path) -> None:
    with guarded(tmp_path / "g", tmp_path / "none" / "weather.jsonl") as found:
        time.sleep(1.2)
        assert found.guard.alive
        assert found.running
    assert not found.guard.alive


def test_a_reader_that_breaks_says_so_in_the_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Host) -> dict[str, float]:
        raise RuntimeError("a driver's surprise")

    monkeypatch.setattr(Host, "sample", broken)
    Sampler(tmp_path / "weather.jsonl", [1]).start()
    (line,) = sampled(tmp_path / "weather.jsonl", 1)
    found = weather_of([line], {"w": [Window(0.0, 1.0)]})
    assert found is not None
    assert found.absent == {"later samples": "RuntimeError: a driver's surprise"}


def test_a_reader_that_costs_much_is_asked_less_often() -> None:
    def costly() -> dict[str, bool]:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return {"read": True}

    read = Paced(0.01, costly)
    began = time.thread_time()
    asked = [read() for _ in range(1000)]
    assert asked[0] == {"read": True}
    assert sum(map(bool, asked)) == 1, "20 ms are 1 % of two seconds"
    assert time.thread_time() - began < 1
    assert sum(SHARES.values()) < COST


@pytest.mark.long
def test_sampling_costs_at_most_half_a_per_cent_of_a_core(tmp_path: Path) -> None:
    """The guard's CPU time with and without, in pairs, the processes of this machine being what they are."""
    seconds, more = 10.0, []
    for pair in range(3):
        took = []
        for number, weather in enumerate((None, tmp_path / f"{pair}.jsonl")):
            with guarded(tmp_path / f"g{pair}{number}", weather) as found:
                process = psutil.Process(found.guard.pid)
                time.sleep(2)
                before = process.cpu_times()
                time.sleep(seconds)
                after = process.cpu_times()
            took.append((after.user + after.system - before.user - before.system) / seconds)
        more.append(took[1] - took[0])
    print(f"sampling took {', '.join(f'{each:.2%}' for each in more)} of a core, {len(psutil.pids())} processes")
    assert sorted(more)[1] <= COST
