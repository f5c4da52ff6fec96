"""Damaged files of every kind that is read back: one line of the project's own, or a right reading.

`FUZZED_FILES=10000 pytest --timeout=0 correctness_tests/instrument/reading` tries as many of each kind.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import capability_gates
import pytest
import request_matrix as matrix
from damage import damaged_json, damaged_lines, literals, numbers, steps
from hypothesis import HealthCheck, given, settings
from reading_cases import (
    APPROACHES,
    BOX,
    COUNTERS,
    PROMPTS,
    WORKLOAD,
    baseline,
    correctness,
    paired_records,
    pool_state,
    ranks_record,
    reported_baseline,
    served_record,
)
from sglang_faults.catalog import CATALOG, BadFault, parse_faults

from fixtures.campaign.loading import load_approaches
from fixtures.campaign.steps import step_of
from fixtures.catalogue import CATALOGUE
from fixtures.deployments import load_box, stacks
from fixtures.errors import MeasurementFailed, SuiteError
from fixtures.gate.baselines import baseline_path, load_baseline
from fixtures.gate.drift import points_from_folders
from fixtures.gate.question import Question, stored
from fixtures.records.correctness import read_correctness
from fixtures.records.measure import workload_metrics
from fixtures.records.passes import read_passes
from fixtures.records.start import StartRecord
from fixtures.records.store import read_record
from fixtures.report.page.sections import acceptance_of, latencies
from fixtures.serving.client_results import WorkloadResult
from fixtures.serving.pool import StateFile
from fixtures.serving.processes import ProcessId
from fixtures.serving.server import Server
from fixtures.serving.workloads import load_workload
from fixtures.session.recorded import Recorded, recorded_pairs
from fixtures.speculation.vocabulary import Vocabulary

FILES = int(os.environ.get("FUZZED_FILES", "120"))
fuzzed = settings(
    max_examples=FILES, deadline=None, derandomize=FILES <= 1000, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzzed-") as name:
        yield Path(name)


def read_or_refused(path: Path, text: str, read: Callable[[], Any]) -> Any:
    """What `read` makes of the file with this text; None where it refuses it in one line that names the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return read()
    except SuiteError as error:
        line = str(error)
        assert "\n" not in line
        assert line.isprintable()
        assert str(path.parent) in line or path.stem in line, line
        assert len(line) < 1200, line
        return None


def said(text: str) -> Any:
    """What a JSON file says, by a parser that knows no default: every key as often as it stands."""

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), "a key that stands twice was read"
        return dict(pairs)

    def no_constant(name: str) -> Any:
        raise AssertionError(f"{name} was read")

    return json.loads(text, object_pairs_hook=once, parse_constant=no_constant)


# --- JSON


@fuzzed
@given(steps)
def test_a_baseline(folder: Path, done: list[Any]) -> None:
    for made in (baseline(), reported_baseline()):
        path = baseline_path(folder, "cpu", "cpu", made.deployment)
        text = damaged_json(made.to_json(), done)
        read = read_or_refused(path, text, lambda: load_baseline(path))  # noqa: B023
        if read is None:
            continue
        told = said(text)
        for metric in told["metrics"].values():
            ends = metric.get("reported")
            if isinstance(ends, dict) and ends["low"] == ends["high"]:
                metric["reported"] = ends["low"]
        assert read.to_json() == told
        records = [served_record(20)]
        for key, metric in read.metrics.items():
            assert (metric.unit, metric.better) == (made.metrics[key].unit, made.metrics[key].better)
            Question("eagle3", key, stored(read, key)).answer(records, share=0.001)


def consumed(record: StartRecord) -> None:
    """What a run does with a record, beyond reading it."""
    for name, workload in record.workloads.items():
        result = WorkloadResult.from_json(workload)
        workload_metrics(result, speculative=True)
        with suppress(MeasurementFailed):
            step_of(record, name)
    acceptance_of([record])
    latencies([record])
    for metric in record.metrics:
        Question("eagle3", metric.key, stored(baseline(), metric.key)).answer([record], share=0.001)
        entry = CATALOGUE[metric.name]
        assert (metric.unit, metric.better) == (entry.unit, entry.better_as(metric.kind))


@pytest.mark.parametrize("made", [served_record(0), ranks_record()], ids=["server", "ranks"])
@fuzzed
@given(steps)
def test_a_start_record(folder: Path, made: StartRecord, done: list[Any]) -> None:
    path = folder / "records" / f"{made.id}.start.json"
    text = damaged_json(made.to_json(), done)
    read = read_or_refused(path, text, lambda: read_record(path))
    if read is not None:
        told = said(text)
        assert {"all_reduces": {}, "compiled": None, **told} == read.to_json()
        consumed(read)


@fuzzed
@given(steps, numbers)
def test_a_folder_of_start_pairs(folder: Path, done: list[Any], which: int) -> None:
    made = paired_records()
    room = folder / "pairs"
    for each in made:
        (room / f"{each.id}.start.json").parent.mkdir(exist_ok=True)
        (room / f"{each.id}.start.json").write_text(json.dumps(each.to_json()))
    hit = made[which % len(made)]
    path = room / f"{hit.id}.start.json"

    def pairs() -> Any:
        found = Recorded(room, "cpu")
        if not found.paired:
            return []
        return [pair for name in found.deployments for pair in recorded_pairs(found.all_records(), name)]

    text = damaged_json(hit.to_json(), done)
    read = None
    try:
        read = read_or_refused(path, text, pairs)
    except AssertionError as error:
        # a fault of the pair names one of its sides or the folder
        if not any(str(each.id) in str(error) for each in made) and str(room) not in str(error):
            raise
    for pair in read or ():
        for key, (old, new) in pair.blocks.items():
            assert len(old) == len(new), key
            pair.of(key)


@fuzzed
@given(steps)
def test_a_history_folder(folder: Path, done: list[Any]) -> None:
    made = served_record(3)
    path = folder / "history" / "night" / f"{made.id}.start.json"
    text = damaged_json(made.to_json(), done)
    read = read_or_refused(path, text, lambda: points_from_folders([path.parent]))
    if read is not None and read[0]:
        told = {each["name"] for each in said(text)["metrics"]}
        assert {series.rpartition("/")[2].rpartition(" ")[2] for series in read[0][0].values} <= told


@fuzzed
@given(steps)
def test_a_correctness_record(folder: Path, done: list[Any]) -> None:
    made = correctness()
    path = folder / f"{made.deployment}.correctness.json"
    text = damaged_json(made.to_json(), done)
    read = read_or_refused(path, text, lambda: read_correctness(folder, made.deployment))
    if read is not None:
        assert json.loads(json.dumps(read.to_json())) == said(text)
        assert isinstance(read.gaps, str)
        assert read.correct in (True, False, None)


@fuzzed
@given(steps)
def test_pass_counters(folder: Path, done: list[Any]) -> None:
    path = folder / "passes" / "rank0.json"
    text = damaged_json(COUNTERS, done)
    read = read_or_refused(path, text, lambda: read_passes(path.parent))
    if read is not None:
        told = said(text)
        (rank,) = read.ranks
        assert (rank.rank, rank.pid, rank.sglang, list(rank.faults)) == tuple(
            told[key] for key in ("rank", "pid", "sglang", "faults")
        )
        for kind, entry in zip(rank.passes, told["passes"], strict=True):
            assert (kind.role, kind.mode, kind.tokens, kind.count) == tuple(
                entry[key] for key in ("role", "mode", "tokens", "count")
            )
            assert {str(key): count for key, count in kind.bytes.items()} == entry["bytes"]
            assert list(kind.seconds.recent) == entry["seconds"]["recent"]
        read.median_seconds()
        read.all_reduce_share()


@fuzzed
@given(steps)
def test_the_state_of_a_pool(folder: Path, done: list[Any]) -> None:
    path = folder / "pool" / "pool.json"
    text = damaged_json(pool_state(), done)

    def opened() -> Any:
        with StateFile(path.parent).opened() as state:
            for entry in state.entries.values():
                assert all(ProcessId.parse(user).alive in (True, False) for user in entry.users)
                assert {entry.starting, entry.ready} <= {True, False}
            return {name: vars(entry) for name, entry in state.entries.items()}

    read = read_or_refused(path, text, opened)
    if read is not None:
        told = said(text)
        assert read.keys() == told["entries"].keys()
        for name, entry in read.items():
            server = told["entries"][name]["server"]
            assert entry == {**told["entries"][name], "server": server and Server.from_json(server)}


@fuzzed
@given(steps)
def test_the_configuration_of_a_model(folder: Path, done: list[Any]) -> None:
    path = folder / "model" / "config.json"
    text = damaged_json({"vocab_size": 320, "eos_token_id": [1, 2], "text_config": {"hidden_size": 8}}, done)
    read = read_or_refused(path, text, lambda: (Vocabulary(path.parent).size, Vocabulary(path.parent).eos))
    if read is not None:
        told = said(text)
        told = {**told, **told.get("text_config", {})}
        assert read[0] == told["vocab_size"]
        ids = told.get("eos_token_id")
        assert read[1] == {each for each in (ids if isinstance(ids, list) else [ids]) if each is not None}


# --- TOML


@fuzzed
@given(steps)
def test_a_box(folder: Path, done: list[Any]) -> None:
    path = folder / "mybox.toml"
    text = damaged_lines(BOX, done)
    read = read_or_refused(path, text, lambda: load_box(path))
    if read is not None:
        told = tomllib.loads(text)
        assert (read.description, list(read.stacks)) == (told["description"], told["stacks"])
        assert read.servers_at_once == told.get("servers_at_once", 2)
        for name, table in told["deployments"].items():
            made = read.deployments[name]
            for key in table.keys() - {"paths", "options", "environment", "workloads"}:
                assert getattr(made, key) == table[key], key
            for key in ("options", "environment"):
                assert table.get(key, {}).items() <= getattr(made, key).items()


@fuzzed
@given(steps)
def test_the_approaches(folder: Path, done: list[Any]) -> None:
    path = folder / "approaches.toml"
    text = damaged_lines(APPROACHES, done)
    read = read_or_refused(path, text, lambda: load_approaches(path))
    if read is not None:
        told = tomllib.loads(text)["approaches"]
        assert read.keys() == told.keys()
        for name, table in told.items():
            for key in table.keys() - {"expected", "outcomes"}:
                value = getattr(read[name], key)
                assert (list(value) if isinstance(value, tuple) else value) == table[key]
            for stack, entry in table["outcomes"].items():
                assert read[name].outcomes[stack].outcome.value == entry["outcome"]
                assert read[name].outcomes[stack].date == entry.get("date")


@fuzzed
@given(steps)
def test_stacks(folder: Path, done: list[Any]) -> None:
    shipped = stacks.FILE
    path = folder / shipped.name
    text = damaged_lines(shipped.read_text(encoding="utf-8"), done)
    try:
        stacks.FILE = path
        read = read_or_refused(path, text, stacks.load_stacks.__wrapped__)
    finally:
        stacks.FILE = shipped
    if read is not None:
        told = tomllib.loads(text)
        assert read.keys() == told.keys()
        for name, table in told.items():
            assert {key: asdict(read[name])[key] for key in table} == table


@fuzzed
@given(steps)
def test_gates(folder: Path, done: list[Any]) -> None:
    shipped = capability_gates.FILE
    path = folder / shipped.name
    text = damaged_lines(shipped.read_text(encoding="utf-8"), done)
    try:
        capability_gates.FILE = path
        capability_gates._document.cache_clear()
        read = read_or_refused(path, text, capability_gates.load_gates.__wrapped__)
    finally:
        capability_gates.FILE = shipped
        capability_gates._document.cache_clear()
    if read is not None:
        told = {name: table for name, table in tomllib.loads(text).items() if name != "releases"}
        assert {each.name for each in read} == told.keys()
        for each in read:
            assert {key: asdict(each)[key] for key in told[each.name]} == told[each.name]
            assert each.covers("0.5.23") in (True, False)


@fuzzed
@given(steps)
def test_the_request_matrix(folder: Path, done: list[Any]) -> None:
    path = folder / "matrix.toml"
    text = damaged_lines(matrix.FILE.read_text(encoding="utf-8"), done)
    read = read_or_refused(path, text, partial(matrix.settings.__wrapped__, path))
    if read is None:
        return
    assert read == tomllib.loads(text)
    tokens = tuple(range(100, 180))
    probes = [matrix.Probe((1, 2), tokens, (3, 8, 20), 4) for _ in range(16)]
    if max([read["prompts"], read["aborts"]["requests"], *read["batches"]["sizes"]]) > 200:
        return
    served = SimpleNamespace(settings=matrix.settings)
    try:
        matrix.settings = lambda: read  # type: ignore[assignment]
        for name, build in matrix.BUILDERS.items():
            try:
                build(probes, lambda ids: " ".join(map(str, ids)), frozenset({1}))
            except (IndexError, ZeroDivisionError) as error:  # positions beyond the answer
                raise AssertionError(f"{name}: {error!r}") from error
    finally:
        matrix.settings = served.settings


@fuzzed
@given(steps)
def test_a_workload(folder: Path, done: list[Any]) -> None:
    (folder / "p.jsonl").write_text(PROMPTS)
    path = folder / "mine.toml"
    text = damaged_lines(WORKLOAD, done)
    read = read_or_refused(path, text, lambda: load_workload(path, "cpu"))
    if read is not None:
        told = tomllib.loads(text)
        size = told["sizes"]["cpu"]
        assert (read.requests, read.max_new_tokens, read.warm_up_requests) == tuple(
            size[key] for key in ("requests", "max_new_tokens", "warm_up_requests")
        )
        assert (read.concurrency, read.cache, read.sampling) == (told["concurrency"], told["cache"], told["sampling"])
        assert (read.stall_s, read.deadline_s) == (told["limits"]["stall_s"], told["limits"]["deadline_s"])
        if read.requests + read.warm_up_requests < 1000:
            assert len(read.fingerprint()) == 12


@fuzzed
@given(steps)
def test_prompts(folder: Path, done: list[Any]) -> None:
    (folder / "prompted.toml").write_text(WORKLOAD.replace("p.jsonl", "q.jsonl"))
    path = folder / "q.jsonl"
    lines = PROMPTS.splitlines()
    text = "\n".join([damaged_json(json.loads(lines[0]), done), *lines[1:]])
    read = read_or_refused(path, text, lambda: load_workload(folder / "prompted.toml", "cpu"))
    if read is not None:
        told = [said(line) for line in text.split("\n") if line.strip()]
        assert [{"id": each.id, "text": each.text} for each in read.prompts] == told


# --- the catalogue of faults


@fuzzed
@given(literals, numbers)
def test_planted_faults(literal: str, which: int) -> None:
    name = list(CATALOG)[which % len(CATALOG)]
    for text in (f"{name}:{literal}", f"{name}:{literal},{literal}", name, f"{literal}:{which}", f"{name}:{which}"):
        with suppress(BadFault):
            read = parse_faults(text)
            assert parse_faults(",".join(map(str, read))) == read
