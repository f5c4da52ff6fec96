"""All-reduce latencies are starts like any other: recorded, judged against baselines, failed closed."""

from __future__ import annotations

import dataclasses
import random
import shlex
from contextlib import nullcontext

import psutil
import pytest

from fixtures.allreduce.ranks import Launchers
from fixtures.records.environment import fingerprint
from fixtures.records.latency import latency_metrics
from fixtures.records.start import StartRecord
from fixtures.records.store import read_records, write_record
from fixtures.session import rank_starts
from fixtures.session.rank_starts import Ranks, measure_ranks, ranks_record, recorded_ranks, runnable_ranks

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(120)]
RANKS = Ranks("gloo", "cpu", 2, (("eager", 14336), ("eager", 57344)))


def quiet(_step: str) -> None:
    """No progress line."""


class StubbedRanks(nullcontext):
    """Ranks of any backend that are only timed."""

    def time(self, *_asked, **_options):
        return [1e-4] * 20


class StubbedLaunchers:
    def __init__(self, opened):
        self._opened = opened

    def group(self, *_asked):
        self._opened.append("ranks")
        return StubbedRanks()


@pytest.fixture
def launchers():
    with Launchers() as started:
        yield started


def test_a_start_of_ranks_is_a_whole_record(launchers, tmp_path):
    empty = ranks_record(RANKS, "stage1", 0, "r", "cpu", "cpu")
    made = measure_ranks(RANKS, launchers, empty, tmp_path, quiet)
    assert made.status == "ok", made.failure
    (read,) = read_records(tmp_path)
    assert read == made
    assert recorded_ranks([read]) == [RANKS]
    keys = {metric.key for metric in read.metrics}
    for mode, nbytes in RANKS.timed:
        workload = RANKS.workload(mode, nbytes)
        assert {f"{workload}/all_reduce_us", f"{workload}/all_reduce_bytes"} <= keys
        assert len(read.all_reduces[workload]["seconds"]) == 20
        assert f"workload {workload}" in read.environment
    assert read.seconds["timing all-reduces"] > 0


@pytest.mark.parametrize("backend", ["gloo", "sglang_pcie_ipc"])
def test_what_ranks_or_servers_tune_leaves_their_starts_comparable(backend, tmp_path, monkeypatch):
    """The machine is read once the ranks are open, and a server's tuning is none of theirs."""
    home = tmp_path / "home"
    cache = home / ".cache" / "flashinfer"
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(home))
    opened = []

    def taken(environment):
        assert opened, "taken before the ranks were open"
        return fingerprint(environment)

    monkeypatch.setattr(rank_starts, "fingerprint", taken)
    ranks, made = dataclasses.replace(RANKS, backend=backend), []
    for index in range(2):
        empty = ranks_record(ranks, "stage1", index, "r", "cpu", "cpu")
        made.append(measure_ranks(ranks, StubbedLaunchers(opened), empty, tmp_path, quiet))
        opened.clear()
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "pcie_ipc_all_reduce_ws2.json").write_text("{}")  # by a server, in between
    assert [record.status for record in made] == ["ok", "ok"], made[0].failure
    assert made[0].environment == made[1].environment


def test_what_a_backend_sets_is_part_of_its_environment(tmp_path):
    ranks = dataclasses.replace(RANKS, backend="sglang_custom_v1")
    empty = ranks_record(ranks, "stage1", 0, "r", "cpu", "cpu")
    made = measure_ranks(ranks, StubbedLaunchers([]), empty, tmp_path, quiet)
    assert made.environment["$SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"] == "0"


def test_ranks_that_die_are_a_failed_measurement(launchers, tmp_path):
    def kill(step: str) -> None:
        if "KiB" in step:
            for rank in [p for child in psutil.Process().children() for p in child.children()]:
                rank.kill()

    record = measure_ranks(RANKS, launchers, ranks_record(RANKS, "stage1", 0, "r", "cpu", "cpu"), tmp_path, kill)
    assert record.status == "measurement failed"
    assert "rank" in record.failure["message"]
    assert not record.metrics
    assert read_records(tmp_path) == [record]


def test_every_backend_that_runs_here_is_timed_at_the_same_world_size():
    found = runnable_ranks()
    assert {"gloo", "ring", "one-shot", "two-shot"} <= {ranks.backend.replace("_", "-") for ranks in found}
    assert len({(ranks.device, ranks.world_size) for ranks in found}) == len({ranks.device for ranks in found})
    assert len({ranks.name for ranks in found}) == len(found)


def write_latencies(directory, count, *, slower=1.0, role="stage1", name="s", seed=1, nbytes=14336):
    noise = random.Random(seed)
    ranks = dataclasses.replace(RANKS, timed=(("eager", nbytes),))
    for index in range(count):
        median = 1e-4 * slower * (1 + noise.gauss(0, 0.005))
        record = ranks_record(ranks, role, index, "r", "cpu", "cpu")
        record.id, record.started_at = f"{name}{index}", f"2026-01-01T00:{index:02d}:00.000Z"
        record.environment = {"machine": "a", "torch": "2", f"workload {ranks.workload('eager', nbytes)}": "w"}
        record.metrics = latency_metrics("gloo", nbytes, 2, [median] * 20)
        record.all_reduces = {
            ranks.workload("eager", nbytes): {
                "backend": ranks.backend, "world_size": ranks.world_size, "bytes": nbytes, "mode": "eager",
                "seconds": [median] * 20,
            }
        }
        write_record(record, directory)


def test_a_slower_all_reduce_is_a_regression_and_says_how_to_measure_it_again(judge_folder, suite, tmp_path):
    write_latencies(tmp_path / "old", 10)
    code, text = judge_folder(tmp_path / "old", "--save-baseline=ten good starts")
    assert code == 0, text
    assert (tmp_path / "baselines" / "cpu" / "cpu" / "all_reduce_gloo_cpu_2.json").exists(), text

    write_latencies(tmp_path / "same", 5, name="n", seed=2)
    code, text = judge_folder(tmp_path / "same")
    assert code == 0, text
    assert "no change" in text
    assert "not in the records: baseline" in text

    write_latencies(tmp_path / "slow", 5, name="n", seed=3, slower=1.1)
    write_latencies(tmp_path / "slow", 5, name="f", seed=4, slower=1.1, role="stage2")
    code, text = judge_folder(tmp_path / "slow")
    assert code == 1, text
    assert "regression" in text
    assert "confirmed by 5 fresh starts" in text

    (line,) = [line for line in text.splitlines() if line.startswith("next: ")]
    code, collected = suite(*shlex.split(line.partition("pytest ")[2]), "--collect-only", "-q")
    assert code == 0, collected
    assert "test_all_reduce_latency[" in collected
    assert "test_decode_rate" not in collected


def test_old_records_without_all_reduces_are_still_read():
    moment = "2026-01-01T00:00:00Z"
    record = StartRecord("i", "r", "cpu", "cpu", "baseline", "stage1", 0, moment, moment).to_json()
    del record["all_reduces"]
    assert StartRecord.from_json(record).all_reduces == {}
