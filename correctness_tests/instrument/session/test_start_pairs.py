"""What a start pair proves of its servers, and that each side's first start after an install is no part of one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.deployments import load_box
from fixtures.deployments.stacks import stack
from fixtures.gate.paired import MeasuredPair
from fixtures.gate.question import Question
from fixtures.records.passes import read_passes
from fixtures.records.start import StartRecord
from fixtures.records.store import read_records
from fixtures.serving.client_results import RequestResult, WorkloadResult
from fixtures.serving.workloads import Workload, load_workload
from fixtures.session import measure_start as module
from fixtures.session import measurements, paired
from fixtures.session.against import Side, candidate_side
from fixtures.session.measurements import Measurements, Plan
from fixtures.session.paired import PairPlan, measure_pair
from fixtures.session.recorded import recorded_pairs
from fixtures.weather.series import SAMPLES

CPU, GPU = load_box("cpu"), load_box("pcie_blackwell")
WORKLOADS = [load_workload(name, "cpu") for name in ("single_stream", "concurrency_8")]


def side_of(name: str, label: str = "candidate", box: Any = CPU, on: str = "cpu") -> Side:
    return Side(label, box.deployment(name), on, "0.5.23", ("python",))


class Server:
    """A server that answers at a steady rate and counts its passes as the plugin does, in the modes it is told to."""

    faults = ()
    bunched: Iterator[bool] = iter(())
    """Whether the next workload's tokens are all read at once."""

    def __init__(self, name: str, folder: Path, mode: str, idle_under: str) -> None:
        self.name, self.url, self.passes_dir, self.log_path = name, name, folder, folder / "server.log"
        self._mode, self._idle_under = mode, idle_under
        self._counts: dict[str, int] = {}
        folder.mkdir()

    def prove_identity(self) -> None:
        """It is the one that was started."""

    check_alive = prove_identity

    def serve(self, workload: Workload) -> WorkloadResult:
        mode = "decode" if workload.name == self._idle_under else self._mode
        bunched = next(self.bunched, False)
        self._counts[mode] = self._counts.get(mode, 0) + 10
        seconds = {"count": 0, "total": 0.0, "recent": []}
        kinds = [
            {"role": "target", "mode": name, "tokens": 1, "count": count, "replays": 0, "seconds": seconds,
             "all_reduces": {}, "bytes": {}, "sites": {},
             "all_reduce_seconds": {"passes": 0, "pass_total": 0.0, "total": 0.0}}
            for name, count in self._counts.items()
        ]
        counters = {"schema": "sglang-passes/1", "rank": 0, "world_size": 1, "pid": 1, "sglang": "0.5.23",
                    "device": "cpu", "faults": [], "passes": kinds}
        (self.passes_dir / "rank0.json").write_text(json.dumps(counters))
        times = tuple(0.1 + (0 if bunched else 0.02) * index for index in range(11))
        passes = 4 if self._mode == "target_verify" else None
        return WorkloadResult(
            workload.name, workload.concurrency,
            tuple(RequestResult("p", 20, 11, 0, 0.0, times, "length", verify_passes=passes) for _ in range(2)), 1.0, 0,
        )


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`pair(baseline, candidate, together, idle, under)`: a measured start pair in which the server of the side `idle`
    decodes token by token, under one workload or under all of them."""

    def measured(baseline: Side, candidate: Side, together: bool, idle: str = "", under: str = "") -> MeasuredPair:
        servers: dict[str, Server] = {}

        def open_server(stack: Any, side: Side, record: StartRecord, *_: Any) -> Server:
            verifies = side.deployment.speculative and (side.label != idle or under)
            mode = "target_verify" if verifies else "decode"
            servers[record.id] = Server(record.id, tmp_path / record.id, mode, under if side.label == idle else "")
            return servers[record.id]

        monkeypatch.setattr(paired, "open_server", open_server)
        monkeypatch.setattr(paired, "settled_passes", read_passes, raising=False)
        monkeypatch.setattr(paired, "measure_workload", lambda url, workload: servers[url].serve(workload))
        plan = PairPlan(baseline, candidate, WORKLOADS, 2, "r", tmp_path, together, 1)
        return measure_pair(plan, 0, lambda subject, step: None)

    return measured


OTHER = "against baseline"


@pytest.mark.parametrize("together", [True, False])
def test_a_block_that_is_no_evidence_is_served_again(
    pair: Any, monkeypatch: Any, together: bool, tmp_path: Path
) -> None:
    """One frozen read of the client does not discard the other blocks of the pair."""
    monkeypatch.setattr(Server, "bunched", iter([False, False, True, False, False, True]))
    found = pair(side_of("baseline", OTHER), side_of("baseline"), together)
    assert [record.status for record in found.records] == ["ok", "ok"], found.records[1].failure
    repeated = [each for record in found.records for each in record.pair.repeated]
    assert len(repeated) == 2
    assert all("came in 1 reads" in each.why for each in repeated)
    assert {each.id: each.pair for each in read_records(tmp_path)} == {each.id: each.pair for each in found.records}
    for old, new in found.blocks.values():
        assert len(old) == len(new) == 2, "as many blocks as were asked for"
        assert all(map(math.isfinite, [*old, *new]))


@pytest.mark.parametrize("together", [True, False])
def test_blocks_that_stay_no_evidence_name_everything(pair: Any, monkeypatch: Any, together: bool) -> None:
    monkeypatch.setattr(Server, "bunched", iter([False] + [True] * 40))
    found = pair(side_of("baseline", OTHER), side_of("baseline"), together)
    assert [record.status for record in found.records] == ["measurement failed"] * 2
    failure = found.records[0].failure
    assert failure["cause"] == "bunched"
    guilty = next(record for record in found.records if len(record.pair.repeated) == paired.REPEATED_BLOCKS)
    for said in (
        f"start {guilty.id} ({guilty.side})", "single_stream block 1 of 2",
        "request p: its 11 tokens of 11 passes came in 1 reads", "server.log",
        f"{paired.REPEATED_BLOCKS} blocks were served again already",
        "measure again: pytest -m perf --box=cpu --deployment=baseline --workload=single_stream",
        "--against=baseline",
    ):  # fmt: skip
        assert said in failure["message"]


@pytest.mark.parametrize("bunched", [False, True])
@pytest.mark.parametrize("together", [True, False])
def test_a_pair_that_something_disturbed_is_no_evidence_and_no_failure(
    pair: Any, monkeypatch: Any, tmp_path: Path, together: bool, bunched: bool
) -> None:
    monkeypatch.setattr(Server, "bunched", iter([False] * 2 + [bunched] * 40))
    hogged = {"t": time.monotonic() + 1e5, "over": 2e5, "scan_s": 2e5, "foreign": {"hog": 0.9}, "cores": 2}
    readings = {"busy_cores": 1.9, "own_cores": 1.0, "foreign_cores": 0.9}
    made = Server.__init__

    def with_weather(self: Server, name: str, folder: Path, mode: str, idle_under: str) -> None:
        made(self, name, folder, mode, idle_under)
        (folder / SAMPLES).write_text(json.dumps({**hogged, "readings": readings}) + "\n")

    monkeypatch.setattr(Server, "__init__", with_weather)
    found = pair(side_of("baseline", OTHER), side_of("baseline"), together)
    assert [record.status for record in found.records] == ["ok", "ok"], found.records[1].failure
    assert not found.usable
    for record in found.records:
        assert record.discarded.startswith("disturbed: foreign processes took 45% of 2 cores (hog 0.9), in single_s")
        assert ("came in 1 reads" in record.discarded) is bunched
    assert len(recorded_pairs(read_records(tmp_path), "baseline")) == 1
    judged = Question("baseline", "single_stream/decode_tok_s", "other side").answer([found], share=0.01)
    assert judged.verdict == "too noisy to tell"
    assert "1 of 1 starts disturbed by foreign CPU work" in judged.reason


@pytest.mark.parametrize("together", [True, False])
def test_a_pair_whose_paths_are_active_is_evidence(pair: Any, together: bool) -> None:
    found = pair(side_of("baseline", OTHER), side_of("eagle3"), together)
    assert [record.status for record in found.records] == ["ok", "ok"], found.records[1].failure
    assert {each.side for each in found.records} == {OTHER, "candidate"}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("idle", [OTHER, "candidate"])
@pytest.mark.parametrize("under", ["", "concurrency_8"])
def test_a_draft_that_verifies_nothing_on_either_side_is_no_evidence(
    pair: Any, together: bool, idle: str, under: str
) -> None:
    """It loads, it is reported, and every pass decodes one token, under one workload at least."""
    found = pair(side_of("eagle3", OTHER), side_of("eagle3"), together, idle, under)
    assert [record.status for record in found.records] == ["measurement failed"] * 2
    failure = found.records[0].failure
    assert failure["cause"] == "path not active"
    assert f"{under or 'single_stream'}: speculation is not active: no verify pass" in failure["message"]
    judged = Question("baseline", "single_stream/decode_tok_s", "other side").answer([found] * 3, share=0.01)
    assert judged.verdict == "measurement failed"


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`measuring(against, cold)`: where start pairs come from, of which the first `cold` compiled something, and what
    was started, in order."""

    def source(against: Any, cold: int = 0) -> tuple[Measurements, list[str]]:
        begun: list[str] = []

        def measure_one(plan: PairPlan, index: int, show: Any) -> MeasuredPair:
            begun.append(f"pair {index} {plan.candidate.deployment.name}")
            made = record(plan.baseline, "paired", index), record(plan.candidate, "paired", index)
            made[0].discarded = "something was compiled in this start pair: triton" if index < cold else None
            return MeasuredPair(made, {}, ())

        monkeypatch.setattr(measurements, "measure_pair", measure_one)
        plan = Plan(
            run="r", box="cpu", stack="cpu", results=tmp_path, starts=2, limit_s=None,
            side=lambda deployment: candidate_side(deployment, stack("cpu")), against=against, block_pairs=2, room=1,
            workloads=lambda deployment: WORKLOADS,
        )
        return Measurements(plan, lambda subject, step: None), begun

    return source


def record(side: Side, role: Any, index: int) -> StartRecord:
    named = f"{side.deployment.name}-{side.label}-{role}-{index}".replace(" ", "-")
    moment = "2026-01-01T00:00:00.000Z"
    return StartRecord(named, "r", "cpu", side.stack, side.deployment.name, role, index, moment, moment)


def test_a_pair_in_which_something_was_compiled_is_measured_again(measuring: Any) -> None:
    source, begun = measuring(lambda deployment: side_of("baseline", OTHER), 1)
    pairs = source.pairs(CPU.deployment("eagle3"), 2)
    assert [each.usable for each in pairs] == [False, True, True]
    assert begun == ["pair 0 eagle3", "pair 1 eagle3", "pair 2 eagle3"]


def test_compiling_that_never_ends_is_not_measured_for_ever(measuring: Any) -> None:
    source, begun = measuring(lambda deployment: side_of("baseline", OTHER), 99)
    assert not any(each.usable for each in source.pairs(CPU.deployment("eagle3"), 3))
    assert len(begun) == 3 + measurements.COLD_STARTS


def test_the_first_start_of_the_other_side_is_filed_as_that_side(tmp_path: Path, monkeypatch: Any) -> None:
    """A report must not take it for a start of a deployment that the run judges."""
    monkeypatch.setattr(module, "_measure", lambda *_: None)
    for label, filed in ((OTHER, OTHER), ("candidate", "")):
        subject = module.Subject(side_of("baseline", label), (), "r")
        made = module.measure_start(subject, "prime", 0, tmp_path, lambda step: None)
        assert made.against == filed
    assert len(read_records(tmp_path)) == 2
