"""The pass counters: what is counted, what is written, and what is read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import RecordError
from fixtures.records.passes import Passes, parse_rank, read_passes

pytest.importorskip("sglang_cpu")

from sglang_cpu.counters import install
from sglang_cpu.counters.install import BUSY_S, Writer
from sglang_cpu.counters.recorder import RECENT, Collectives, Entry, Recorder


class Tensor:
    """What the recorder asks of a tensor."""

    def __init__(self, elements: int, size: int = 2) -> None:
        self._elements, self._size = elements, size

    def numel(self) -> int:
        return self._elements

    def element_size(self) -> int:
        return self._size


class StepClock:
    """Each mark is one second after the one before."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        self.now += 1
        return self.now

    def times_all_reduces(self, number: int) -> bool:
        return True

    def book(self, entry: Entry, start: float, end: float, collectives: Collectives, spans: list[Any]) -> None:
        entry.time_pass(end - start, sum(b - a for a, b in spans) if collectives.timed else None)

    def drain(self) -> bool:
        return False


def recorder(capturing: Callable[[], bool] = bool) -> Recorder:
    return Recorder(StepClock(), capturing)


def forward(counters: Recorder, all_reduces: int, tokens: int = 4, hidden: int = 128) -> Callable[[], str]:
    def run() -> str:
        for _ in range(all_reduces):
            counters.run_collective("tp", "all_reduce", True, Tensor(tokens * hidden), lambda: "sum")
        counters.run_collective("tp", "all_gather", False, Tensor(tokens * 320), lambda: "all")
        return "done"

    return run


def document(counters: Recorder, **changes: Any) -> dict[str, Any]:
    return {
        "schema": "sglang-passes/1", "rank": 0, "world_size": 1, "pid": 1, "sglang": "0.5.23", "device": "cpu",
        "faults": [], "passes": counters.counts.to_json(), **changes,
    }


def passes(counters: Recorder, **changes: Any) -> Passes:
    return Passes((parse_rank(json.loads(json.dumps(document(counters, **changes))), "test"),))


def test_a_pass_is_counted_with_its_all_reduces() -> None:
    counters = recorder()
    for _ in range(3):
        assert counters.run_pass("target", "decode", 4, forward(counters, 12)) == "done"
    read = passes(counters)
    assert read.count("target", "decode") == 3
    assert read.all_reduces_per_pass("target", "decode") == {12: 3}
    assert read.bytes_per_all_reduce(4) == {4 * 128 * 2: 36}
    (reduced, gathered) = sorted(read.sites().items(), key=lambda item: -item[1])
    assert reduced[0].startswith("tp all_reduce forward.<locals>.run < ")
    assert reduced[1] == 36
    assert gathered[0].startswith("tp all_gather")
    assert gathered[1] == 3
    # 12 spans of one step each in a pass of 2 * 12 + 1 steps.
    assert read.median_seconds("target", "decode") == 25
    assert read.all_reduce_share("target") == pytest.approx(12 / 25)


def test_a_missing_all_reduce_shows() -> None:
    counters = recorder()
    counters.run_pass("target", "decode", 4, forward(counters, 12))
    counters.run_pass("target", "decode", 4, forward(counters, 11))
    assert passes(counters).all_reduces_per_pass("target") == {11: 1, 12: 1}


def test_collectives_outside_passes_are_not_counted() -> None:
    counters = recorder()
    forward(counters, 5)()
    assert passes(counters).sites() == {}


def test_an_all_reduce_within_a_collective_is_counted_once() -> None:
    counters = recorder()

    def run() -> None:
        counters.run_collective(
            "tp", "fused_allreduce_rmsnorm", True, Tensor(8),
            lambda: counters.run_collective("tp", "all_reduce", True, Tensor(8), lambda: "sum"),
        )

    counters.run_pass("target", "decode", 1, run)
    assert passes(counters).all_reduces_per_pass() == {1: 1}


def test_a_fused_operation_that_declines_is_not_counted() -> None:
    counters = recorder()

    def run() -> None:
        counters.run_collective("tp", "fused_allreduce_rmsnorm", True, Tensor(8), lambda: None)
        counters.run_collective("tp", "all_reduce", True, Tensor(8), lambda: "sum")

    counters.run_pass("target", "decode", 1, run)
    assert passes(counters).all_reduces_per_pass() == {1: 1}


class Graph:
    """Stands for a captured CUDA graph: an identity."""


def test_a_replay_counts_what_was_captured() -> None:
    capturing = True
    counters = recorder(lambda: capturing)
    graphs = [Graph(), Graph()]
    for graph, all_reduces in zip(graphs, (12, 2), strict=True):
        counters.begin_capture()
        counters.run_pass("target", "decode", 8, forward(counters, all_reduces, tokens=8))
        counters.end_capture(graph)
    capturing = False
    assert passes(counters).ranks[0].passes == ()
    shared = Graph()
    counters.same_graph(graphs[1], shared)
    counters.run_pass("target", "decode", 5, lambda: [counters.replay(graph) for graph in (graphs[0], shared)])
    read = passes(counters)
    assert read.all_reduces_per_pass("target") == {14: 1}
    assert read.bytes_per_all_reduce(5) == {8 * 128 * 2: 14}
    assert read.select("target")[0].replays == 1
    assert read.all_reduce_share("target") is None


def test_graphs_are_captured_before_the_first_pass_and_counted_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a server starts on a GPU: it captures while it loads, and its first forward pass may be a replay."""
    torch = pytest.importorskip("torch")
    hooked: dict[str, Any] = {}
    monkeypatch.setattr(install, "around", lambda target, **_: lambda wrapper: hooked.setdefault(target, wrapper))
    monkeypatch.setattr(install, "_recorder", lambda cuda: recorder())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    written: list[Recorder] = []
    monkeypatch.setattr(install, "_device_name", lambda: "a GPU")
    monkeypatch.setattr(
        install.Installation, "_write", lambda self, runner, device, counters: written.append(counters)
    )
    install.install_counters(tmp_path, ())
    nothing = lambda *given: None  # noqa: E731
    group, graph = SimpleNamespace(world_size=8, unique_name="tp:0"), Graph()
    all_reduce = hooked["sglang.srt.distributed.parallel_state.GroupCoordinator.all_reduce"]
    hooked["torch.cuda.CUDAGraph.capture_begin"](nothing, graph)
    for _ in range(122):
        all_reduce(lambda group, tensor: tensor, group, Tensor(7168))
    hooked["torch.cuda.CUDAGraph.capture_end"](nothing, graph)
    assert not written, "no pass yet: the rank is not known"
    runner = SimpleNamespace(device="cuda:0", is_draft_worker=False)
    batch = SimpleNamespace(forward_mode=SimpleNamespace(name="DECODE"), input_ids=torch.zeros(1))
    replay = hooked["torch.cuda.CUDAGraph.replay"]
    for _ in range(2):
        hooked["sglang.srt.model_executor.model_runner.ModelRunner.forward"](
            lambda runner, batch: replay(nothing, graph), runner, batch
        )
    (counters,) = written
    assert passes(counters).all_reduces_per_pass("target") == {122: 2}
    assert passes(counters).bytes_per_all_reduce(1) == {7168 * 2: 244}


def test_a_pass_that_raises_is_not_counted_and_the_next_one_is() -> None:
    counters = recorder()

    def crash() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        counters.run_pass("target", "decode", 1, crash)
    counters.run_pass("target", "decode", 1, forward(counters, 2))
    assert passes(counters).count() == 1


def test_only_the_latest_durations_are_kept() -> None:
    entry = Entry()
    for i in range(RECENT + 10):
        entry.time_pass(float(i), None)
    kept = entry.to_json("target", "decode", 1)["seconds"]
    assert kept["count"] == RECENT + 10
    assert kept["recent"] == [float(i) for i in range(10, RECENT + 10)]


def test_what_happened_between_two_readings() -> None:
    counters = recorder()
    counters.run_pass("target", "decode", 4, forward(counters, 12))
    before = passes(counters)
    counters.run_pass("target", "decode", 4, forward(counters, 10))
    counters.run_pass("draft", "decode", 1, forward(counters, 2, tokens=1))
    change = passes(counters).since(before)
    assert change.all_reduces_per_pass("target") == {10: 1}
    assert change.seconds("target") == [21]
    assert change.count("draft") == 1
    assert passes(counters).since(passes(counters)).count() == 0


def test_two_servers_are_not_compared() -> None:
    counters = recorder()
    with pytest.raises(RecordError, match="process 2 is not the one read before"):
        passes(counters, pid=2).since(passes(counters))


def test_the_writer_writes_when_idle_and_now_and_then_when_busy(tmp_path: Path) -> None:
    version = 0
    path = tmp_path / "made" / "rank0.json"
    writer = Writer(path, lambda: {"version": version}, lambda: version, lambda: None)

    def written() -> int:
        return int(json.loads(path.read_text())["version"])

    assert writer.step(100.0), "the first write comes at once"
    version = 5
    assert not writer.step(100.1)
    version = 6
    assert not writer.step(100.3), "still changing"
    assert writer.step(100.5), "idle"
    assert written() == 6
    assert not writer.step(100.7), "nothing new"
    version = 7
    assert writer.step(100.5 + BUSY_S), "busy for long"
    assert written() == 7
    assert [each.name for each in path.parent.iterdir()] == ["rank0.json"]


def write(directory: Path, counters: Recorder, **changes: Any) -> None:
    document_ = document(counters, **changes)
    (directory / f"rank{document_['rank']}.json").write_text(json.dumps(document_))


def test_ranks_are_read_together(tmp_path: Path) -> None:
    counters = recorder()
    counters.run_pass("target", "decode", 4, forward(counters, 12))
    for rank in (1, 0):
        write(tmp_path, counters, rank=rank, world_size=2, faults=["slow_pass:0.2"] if rank else [])
    read = read_passes(tmp_path)
    assert [rank.rank for rank in read.ranks] == [0, 1]
    assert read.all_reduces_per_pass() == {12: 2}
    assert read.faults == ("slow_pass:0.2",)


def test_bad_counters_are_named_in_one_line(tmp_path: Path) -> None:
    counters = recorder()
    counters.run_pass("target", "decode", 4, forward(counters, 12))
    with pytest.raises(RecordError, match="no pass counters"):
        read_passes(tmp_path)
    write(tmp_path, counters, world_size=2)
    with pytest.raises(RecordError, match=r"ranks \[0\] of 2"):
        read_passes(tmp_path)
    write(tmp_path, counters, schema="sglang-passes/0")
    with pytest.raises(RecordError, match="expected 'sglang-passes/1'"):
        read_passes(tmp_path)
    whole = document(counters)
    del whole["passes"][0]["bytes"]
    with pytest.raises(RecordError, match="'bytes' is a required property, and missing"):
        parse_rank(whole, "rank0.json")
    with pytest.raises(RecordError, match="not valid"):
        parse_rank([], "rank0.json")
    (tmp_path / "rank0.json").write_text("{")
    with pytest.raises(RecordError, match="not readable"):
        read_passes(tmp_path)


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no rank 3"):
        passes(recorder()).select(rank=3)
