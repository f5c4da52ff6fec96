"""The host as /proc and /sys show it: a machine made of files, with clocks to be set."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.weather.host import Host, descendants

TICKS = 100
ME, SERVER, RANK, HOG, LATER = 10, 11, 12, 20, 30


class Machine:
    """/proc and /sys below a folder; `after(seconds, ...)`: the CPU seconds by pid that passed meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.wall = folder, 1000.0, 5000.0
        self.used = {ME: ("pytest", 1, 0.0), SERVER: ("sglang", ME, 0.0), RANK: ("rank (0) x", SERVER, 0.0)}
        self.used[HOG] = ("hog", 1, 0.0)
        self.busy = self.stolen = self.stalled = self.swapped = 0.0
        frequency = folder / "sys/devices/system/cpu/cpu0/cpufreq"
        frequency.mkdir(parents=True)
        (frequency / "scaling_cur_freq").write_text("3200000\n")
        (frequency / "scaling_governor").write_text("schedutil\n")
        zone = folder / "sys/class/thermal/thermal_zone0"
        zone.mkdir(parents=True)
        (zone / "temp").write_text("54000\n")
        self.write()
        self.host = Host([ME], folder, lambda: self.wall, lambda: self.now)

    def write(self) -> None:
        proc = self.folder / "proc"
        for pid, (name, parent, seconds) in self.used.items():
            (proc / str(pid)).mkdir(parents=True, exist_ok=True)
            rest = [parent, 0, 0, 0, 0, 0, 0, 0, 0, 0, round(seconds * TICKS), 0, 0, 0, 0, 0, 0, 0, 99]
            (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {' '.join(map(str, rest))} 0\n")
        (proc / "stat").write_text(f"cpu  {round(self.busy * TICKS)} 0 0 9 0 0 0 {round(self.stolen * TICKS)} 0 0\n")
        (proc / "loadavg").write_text("1.25 1.0 0.9 1/94 6525\n")
        (proc / "pressure").mkdir(exist_ok=True)
        for what in ("cpu", "memory", "io"):
            told = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(self.stalled * 1e6)}\nfull avg10=0 total=0\n"
            (proc / "pressure" / what).write_text(told)
        (proc / "vmstat").write_text(f"nr_free_pages 1\npswpin {round(self.swapped)}\npswpout 0\n")
        (proc / "meminfo").write_text("Cached: 1048576 kB\nSwapTotal: 2097152 kB\nSwapFree: 1048576 kB\n")

    def after(self, seconds: float, used: dict[int, float], **counters: float) -> None:
        self.now, self.wall = self.now + seconds, self.wall + seconds
        for pid, took in used.items():
            name, parent, before = self.used[pid]
            self.used[pid] = (name, parent, before + took)
        self.busy += sum(used.values())
        for name, value in counters.items():
            setattr(self, name, getattr(self, name) + value)
        self.write()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_the_files_say(machine: Machine) -> None:
    found = machine.host.sample()
    assert (found["load"], found["cpu_mhz"], found["cpu_celsius"], found["page_cache_gib"]) == (1.25, 3200, 54, 1)
    assert found["swap_gib"] == 1
    assert machine.host.governor == "schedutil"
    assert machine.host.absent == {}


def test_foreign_time_is_that_of_processes_that_did_not_come_from_the_run(machine: Machine) -> None:
    assert machine.host.processes() == ({}, {})
    machine.after(2.0, {ME: 0.2, SERVER: 1.0, RANK: 1.0, HOG: 1.5}, stolen=0.5)
    whole, foreign = machine.host.processes()
    assert foreign == {"hog": 0.75}
    assert whole == pytest.approx(
        {"scan_s": 2.0, "busy_cores": 1.85, "steal_cores": 0.25, "own_cores": 1.1, "foreign_cores": 0.75}
    )
    assert machine.host.ours == {ME, SERVER, RANK}


def test_a_pid_that_is_used_again_is_another_process(machine: Machine) -> None:
    machine.after(1.0, {HOG: 50.0})
    machine.host.processes()
    stat = machine.folder / "proc" / str(HOG) / "stat"
    machine.after(1.0, {})
    stat.write_text(stat.read_text().replace(" 5000 0 ", " 25 0 ").replace(" 99 ", " 500 "))
    _, foreign = machine.host.processes()
    assert foreign == {"hog": 0.25}


def test_pressure_and_swapping_are_of_the_time_between(machine: Machine) -> None:
    assert "psi_memory" not in machine.host.sample()
    machine.after(2.0, {}, stalled=0.5, swapped=600)
    found = machine.host.sample()
    assert (found["psi_memory"], found["swap_pages_s"]) == (0.25, 300)


@pytest.mark.parametrize(("step", "name"), [(-3.2, "clock_back_s"), (60.0, "clock_ahead_s")])
def test_a_clock_that_is_set_is_seen_once(machine: Machine, step: float, name: str) -> None:
    machine.host.sample()
    machine.after(1.0, {})
    machine.wall += step
    assert machine.host.sample()[name] == pytest.approx(abs(step))
    machine.after(1.0, {})
    assert machine.host.sample()[name] == pytest.approx(0)


def test_what_a_kernel_does_not_show_is_absent_with_its_reason_and_the_rest_is_read(machine: Machine) -> None:
    for path in (machine.folder / "proc/pressure").iterdir():
        path.unlink()
    found = machine.host.sample()
    assert "psi_cpu" not in found
    assert found["load"] == 1.25
    assert machine.host.absent["pressure"].startswith("FileNotFoundError")
    bare = Host([ME], machine.folder / "nothing")
    assert bare.absent == {"cpu_mhz": "the kernel shows none", "cpu_celsius": "the kernel shows none"}


def test_descendants_of_a_run() -> None:
    assert descendants([1], {1: 0, 2: 1, 3: 2, 4: 9, 9: 0}) == {1, 2, 3}
