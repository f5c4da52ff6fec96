"""A file is not believed about itself: what it says of a metric, of a time or of whose it is, is held against what is
known. Each case is one line with the file, the key and the value."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import capability_gates
import pytest
from reading_cases import (
    COUNTERS,
    MOMENT,
    baseline,
    correctness,
    paired_records,
    pool_state,
    ranks_record,
    reported_baseline,
    served_record,
)

from fixtures.deployments import load_box, stacks
from fixtures.errors import BaselineError, DeploymentError, RecordError, ServerError, SuiteError, WorkloadError
from fixtures.gate.baselines import baseline_path, load_baseline, write_baseline
from fixtures.gate.saving import baseline_from_records
from fixtures.reading import json_text, read_json
from fixtures.records.correctness import read_correctness
from fixtures.records.metric import Metric
from fixtures.records.passes import read_passes
from fixtures.records.start import StartRecord
from fixtures.records.store import read_record, read_records, write_record
from fixtures.serving.pool import StateFile
from fixtures.serving.workloads.workload import read_prompts
from fixtures.session.recorded import Recorded

RATE, TTFT = "single_stream/decode_tok_s", "single_stream/ttft_ms"
TOMORROW = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
Change = Callable[[dict[str, Any]], Any]


def refused(path: Path, text: str | bytes, read: Callable[[], Any], *told: str, kind: type[SuiteError]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(kind) as caught:
        read()
    line = str(caught.value)
    assert "\n" not in line
    for part in (path.name, *told):
        assert part in line, line
    return line


def _reported(data: dict[str, Any]) -> None:
    metric = data["metrics"][RATE]
    del metric["starts"]
    metric |= {"kind": "reported", "reported": {"low": 60, "high": 140}}


def _in_seconds(data: dict[str, Any]) -> None:
    metric = data["metrics"][TTFT]
    metric |= {"unit": "s", "starts": [value / 1000 for value in metric["starts"]]}


BASELINES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "the other way is better": (
        lambda d: d["metrics"][RATE].update(better="lower"), (RATE, "better = 'lower'", "higher"),
    ),
    "no way is better": (lambda d: d["metrics"][RATE].update(better="same"), (RATE, "better = 'same'")),
    "another unit": (_in_seconds, (TTFT, "unit = 's'", "ms")),
    "a constant with a wide margin": (_reported, (RATE, "kind = 'reported'", "measured")),
    "counted where it is pinned": (
        lambda d: d["metrics"]["kv_tokens"].update(kind="counted"),
        ("kv_tokens", "kind = 'counted'", "exact", "max_total_tokens"),
    ),
    "exact where it is timed": (
        lambda d: d["metrics"][RATE].update(kind="exact", starts=[1.0] * 10), (RATE, "kind = 'exact'", "timing"),
    ),
    "a metric that no one knows": (
        lambda d: d["metrics"].update({"single_stream/decode_toks": d["metrics"].pop(RATE) | {"name": "decode_toks"}}),
        ("decode_toks", "decode_tok_s"),
    ),
    "a metric without its workload": (
        lambda d: d["metrics"].update({"ttft_ms": d["metrics"].pop(TTFT) | {"workload": None}}),
        ("metrics/ttft_ms", "workload = None"),
    ),
    "a day that never was": (lambda d: d.update(saved_at="2026-02-30T10:00:00Z"), ("saved_at", "2026-02-30", "no")),
    "a day to come": (lambda d: d.update(saved_at=TOMORROW), ("saved_at", TOMORROW, "future")),
    "a time without a zone": (lambda d: d.update(saved_at="2026-01-02T10:00:00"), ("saved_at", "UTC")),
    "saved before it was measured": (lambda d: d.update(saved_at="2025-12-30T10:00:00Z"), ("saved_at", "2025-12-30")),
    "a copy under another name": (lambda d: d.update(deployment="baseline"), ("starts", "eagle3", "not of baseline")),
    "half a tokens": (
        lambda d: d["metrics"]["kv_tokens"].update(starts=[20000.5] * 10), ("kv_tokens", "20000.5", "whole number"),
    ),
    "an exact figure that varies": (
        lambda d: d["metrics"]["kv_tokens"]["starts"].__setitem__(3, 20001), ("kv_tokens", "varies", "20000 to 20001"),
    ),
    "a digest that the environment does not have": (
        lambda d: d["workloads"].update(single_stream="other"), ("workloads/single_stream", "other", "'w'"),
    ),
    "no digest at all": (
        lambda d: (d["workloads"].clear(), d["environment"].pop("workload single_stream")), ("no digest",),
    ),
    "told, with starts": (lambda d: d.update(provenance="reported"), ("starts", "reported")),
    "values of different lengths": (lambda d: d["metrics"][TTFT]["starts"].pop(), (TTFT, "9 values for 10")),
    "true for one": (lambda d: d["metrics"][TTFT]["starts"].__setitem__(0, True), (TTFT, "True")),
}  # fmt: skip


@pytest.mark.parametrize("case", BASELINES)
def test_a_baseline_is_not_believed(tmp_path: Path, case: str) -> None:
    change, told = BASELINES[case]
    data = baseline().to_json()
    change(data)
    path = baseline_path(tmp_path, "cpu", "cpu", data["deployment"])
    refused(path, json.dumps(data), lambda: load_baseline(path), *told, kind=BaselineError)


def test_the_good_files_are_read(tmp_path: Path) -> None:
    for made in (baseline(), reported_baseline()):
        assert load_baseline(write_baseline(made, tmp_path)) == made
    for record in (served_record(0), ranks_record(), *paired_records()):
        path = tmp_path / f"{record.id}.start.json"
        path.write_text(json.dumps(record.to_json()))
        assert read_record(path) == record


@pytest.mark.parametrize("dump", [json.dumps, lambda data: json.dumps(data, indent=1)], ids=["one line", "many"])
def test_a_key_that_stands_twice_is_no_reading(tmp_path: Path, dump: Callable[[Any], str]) -> None:
    """The last one would win: a regression would become an improvement."""
    path = baseline_path(tmp_path, "cpu", "cpu", "eagle3")
    data = baseline().to_json()
    slower = {**data["metrics"][RATE], "starts": [0.9 * value for value in data["metrics"][RATE]["starts"]]}
    text = dump(data).replace('"metrics": {', f'"metrics": {{ "{RATE}": {json.dumps(slower)},', 1)
    refused(path, text, lambda: load_baseline(path), RATE, "2 times", kind=BaselineError)
    record = served_record(0)
    one = tmp_path / f"{record.id}.start.json"
    text = json_text(record.to_json()).replace('"value":', '"value":1.0,"value":', 1)
    refused(one, text, lambda: read_record(one), "'value'", "2 times", kind=RecordError)
    assert len(json.loads(text)["metrics"]) == 4
    for kind, path, data, read in (
        (RecordError, tmp_path / "eagle3.correctness.json", correctness().to_json(),
         lambda: read_correctness(tmp_path, "eagle3")),
        (RecordError, tmp_path / "passes" / "rank0.json", COUNTERS, lambda: read_passes(tmp_path / "passes")),
        (ServerError, tmp_path / "pool" / "pool.json", pool_state(),
         lambda: StateFile(tmp_path / "pool").opened().__enter__()),
    ):  # fmt: skip
        key = next(iter(data))
        text = dump(data).replace(f'"{key}":', f'"{key}": 1, "{key}":', 1)
        refused(path, text, read, repr(key), "2 times", kind=kind)
    prompts = tmp_path / "p.jsonl"
    text = '{"id": "a", "text": "x", "text": "y"}'
    refused(prompts, text, lambda: read_prompts(prompts), "'text'", kind=WorkloadError)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": 1e999}', "no finite number"),
        (b'{"a": 18446744073709551616}', "too large a number"),
        (b"[" * 300 + b"]" * 300, "nested too deeply"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": 1} {', ":1: not JSON"),
    ],
    ids=["BOM", "bytes", "NaN", "1e999", "2**64", "deep", "half a character", "two"],
)
def test_what_the_usual_parsers_let_pass(tmp_path: Path, text: bytes, told: str) -> None:
    path = tmp_path / "x.json"
    refused(path, text, lambda: read_json(path, RecordError, "restore it"), told, kind=RecordError)


def test_a_record_as_this_suite_writes_it_is_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    data = {"µ": [1e-7, 1e16, 0.1, -0.0, 5, None, True, "\u2028"], "deep": {"a": [[]]}}
    path.write_text(json_text(data))
    monkeypatch.setattr("fixtures.reading.json_of", lambda *_: pytest.fail("parsed twice"))
    assert read_json(path, RecordError, "") == data


def _metric(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in data["metrics"] if each["name"] == name)


RECORDS: dict[str, tuple[Change, tuple[str, ...]]] = {
    "the other way is better": (lambda d: _metric(d, "ttft_ms").update(better="higher"), ("ttft_ms", "'higher'")),
    "another unit": (lambda d: _metric(d, "ttft_ms").update(unit="s", value=0.02), ("ttft_ms", "unit = 's'", "ms")),
    "another kind": (lambda d: _metric(d, "ttft_ms").update(kind="counted"), ("ttft_ms", "'counted'", "timing")),
    "counted where it is pinned": (lambda d: _metric(d, "kv_tokens").update(kind="counted"), ("kv_tokens", "exact")),
    "a metric twice": (lambda d: d["metrics"].append(dict(d["metrics"][1], value=50.0)), (RATE, "twice", "100 and 50")),
    "a figure below zero": (lambda d: _metric(d, "ttft_ms").update(value=-3.0), ("metrics/2/value", "-3.0")),
    "a metric of no workload here": (
        lambda d: _metric(d, "ttft_ms").update(workload="concurrency_8"), ("concurrency_8/ttft_ms", "no workload"),
    ),
    "another deployment's": (lambda d: d.update(deployment="baseline"), ("id", "a start of eagle3, not of baseline")),
    "another day's": (lambda d: d.update(started_at="2026-03-01T00:00:00Z"), ("started_at", "2026-03-01")),
    "a day that never was": (lambda d: d.update(finished_at="2026-02-30T10:00:00Z"), ("finished_at", "2026-02-30")),
    "a day to come": (lambda d: d.update(started_at=TOMORROW), ("started_at", "future")),
    "a whole number with a point": (lambda d: d.update(index=3.0), ("index", "3.0")),
    "times that are none": (
        lambda d: d["workloads"]["single_stream"]["requests"][1].update(token_times_s=["a"]),
        ("requests/1/token_times_s", "'a'"),
    ),
    "times that run backwards": (
        lambda d: d["workloads"]["single_stream"]["requests"][0]["token_times_s"].reverse(),
        ("requests/0/token_times_s",),
    ),
    "more cached than there is": (
        lambda d: d["workloads"]["single_stream"]["requests"][0].update(cached_tokens=10), ("cached_tokens = 10", "9"),
    ),
    "a negative count": (
        lambda d: d["workloads"]["single_stream"]["requests"][0].update(verify_passes=-1), ("verify_passes = -1",),
    ),
    "a workload under another name": (
        lambda d: d["workloads"]["single_stream"].update(name="concurrency_8"), ("name = 'concurrency_8'",),
    ),
    "passes that count themselves twice": (
        lambda d: d["passes"]["single_stream"]["passes"].append(d["passes"]["single_stream"]["passes"][0]),
        ("passes/single_stream", "two rows"),
    ),
    "all-reduces that are no count": (
        lambda d: d["passes"]["single_stream"]["passes"][0].update(all_reduces={"many": 1}), ("all_reduces", "many"),
    ),
    "well, and failed": (
        lambda d: d.update(failure={"cause": "hang", "message": "m", "lines": []}), ("failure", "status = 'ok'"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RECORDS)
def test_a_start_record_is_not_believed(tmp_path: Path, case: str) -> None:
    change, told = RECORDS[case]
    data = served_record(0).to_json()
    change(data)
    path = tmp_path / f"{data['id']}.start.json"
    refused(path, json.dumps(data), lambda: read_record(path), *told, kind=RecordError)


def test_two_records_of_one_start_are_one_too_many(tmp_path: Path) -> None:
    data = served_record(0).to_json()
    for name in ("a", "b"):
        (tmp_path / f"{name}.start.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match=rf"b\.start\.json: id = '{data['id']}': another file has it too"):
        read_records(tmp_path)


def _order(records: list[dict[str, Any]]) -> None:
    order = records[1]["pair"]["order"]
    order[0] = not order[0]


def _short(records: list[dict[str, Any]]) -> None:
    records[0]["pair"]["blocks"].pop()


def _same_side(records: list[dict[str, Any]]) -> None:
    records[3]["against"] = "HEAD"


def _unit(records: list[dict[str, Any]]) -> None:
    records[0]["pair"]["blocks"][2]["metrics"][0]["better"] = "lower"


@pytest.mark.parametrize(
    ("change", "told"),
    [(_order, "order"), (_short, "blocks"), (_same_side, "this side twice"), (_unit, "better = 'lower'")],
)
def test_a_start_pair_is_not_believed(tmp_path: Path, change: Callable[[list[Any]], None], told: str) -> None:
    records = [each.to_json() for each in paired_records()]
    change(records)
    for record in records:
        (tmp_path / f"{record['id']}.start.json").write_text(json.dumps(record))
    deployment = load_box("cpu").deployment("eagle3")
    with pytest.raises(RecordError, match=told) as caught:
        Recorded(tmp_path, "cpu").pairs(deployment, 1)
    assert any(record["id"] in str(caught.value) for record in records)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(checked_at="2026-02-30T10:00:00Z"), "checked_at"),
        (lambda d: d["all_reduce"][1].update(calls=5), "mscclpp"),
        (lambda d: d.update(not_checked="no time"), "not_checked"),
        (lambda d: d["replay"].update(positions=500.0), "replay/positions"),
        (lambda d: d.update(deployment="baseline"), "deployment"),
    ],
)
def test_a_correctness_record_is_not_believed(tmp_path: Path, change: Change, told: str) -> None:
    data = json.loads(json.dumps(correctness().to_json()))
    change(data)
    path = tmp_path / "eagle3.correctness.json"
    refused(path, json.dumps(data), lambda: read_correctness(tmp_path, "eagle3"), told, kind=RecordError)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["passes"][0].update(count=-4), "count = -4"),
        (lambda d: d["passes"][0].update(count="4"), "count = '4'"),
        (lambda d: d["passes"][0].update(count=True), "count = True"),
        (lambda d: d["passes"][0].update(tokens=3.7), "tokens = 3.7"),
        (lambda d: d["passes"][0].update(bytes={"1e3": 4}), "'1e3'"),
        (lambda d: d["passes"][0]["seconds"].update(totall=1), "totall"),
        (lambda d: d["passes"][0]["seconds"]["recent"].append(0.1), "recent"),
        (lambda d: d["passes"].append(d["passes"][0]), "twice"),
        (lambda d: d.update(faults="slow"), "faults"),
    ],
)
def test_pass_counters_are_not_believed(tmp_path: Path, change: Change, told: str) -> None:
    """A count that is text, a truth or a fraction was taken for a number."""
    data = json.loads(json.dumps(COUNTERS))
    change(data)
    path = tmp_path / "rank0.json"
    refused(path, json.dumps(data), lambda: read_passes(tmp_path), told, kind=RecordError)


def test_two_servers_counters_are_no_servers(tmp_path: Path) -> None:
    for rank, size in ((0, 2), (1, 4)):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({**COUNTERS, "rank": rank, "world_size": size}))
    with pytest.raises(RecordError, match="2 or 4"):
        read_passes(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('sglang = "0.5.23"', "sglang = 5", "sglang"),
        ("[cpu.components]", "[cpu.parts]", "components"),
        ('python = "3.11"\n', "", "python"),
        ('torch_cuda = "13.0"', 'torch_cuda = "latest"', "latest"),
    ],
)
def test_a_stack_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, told: str
) -> None:
    path = tmp_path / "stacks.toml"
    text = stacks.FILE.read_text(encoding="utf-8").replace(old, new, 1)
    monkeypatch.setattr(stacks, "FILE", path)
    refused(path, text, stacks.load_stacks.__wrapped__, told, kind=DeploymentError)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('meaning = "m"\npackage = "p"\nfile = "f"\nfind = { tabel = "t" }', "tabel"),
        ('meaning = "m"\npackage = "p"\nfile = "f"\nfind = { text = "t" }\nsince = "five"', "since"),
        ('meaning = "m"\npackage = "p"\nfile = "f"\nfind = { text = "t" }\nuntill = "0.5.6"', "untill"),
        ('meaning = "m"\npackage = "p"\nfind = { text = "t" }', "file"),
    ],
)
def test_a_gate_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, told: str) -> None:
    path = tmp_path / "gates.toml"
    monkeypatch.setattr(capability_gates, "FILE", path)
    read = capability_gates._document.__wrapped__
    refused(path, f"[one]\n{table}\n", lambda: [capability_gates.Gate("n", **each) for each in read().values()], told,
            kind=DeploymentError)


def test_a_goal_of_no_metric_is_refused(tmp_path: Path) -> None:
    """It would never be asked about."""
    good = (Path(load_box("cpu").source)).read_text(encoding="utf-8")
    for goal, told in (("single_stream/decode_toks", "decode_tok_s"), ("long/decode_tok_s", "long")):
        text = good + f'\n[deployments.hoped]\ndescription = "d"\nextends = "baseline"\ngoals = {{ "{goal}" = 5 }}\n'
        path = tmp_path / "cpu.toml"
        refused(path, text, lambda: load_box(path), told, kind=DeploymentError)  # noqa: B023


def test_a_box_with_a_pattern_that_no_one_can_search_for(tmp_path: Path) -> None:
    good = (Path(load_box("cpu").source)).read_text(encoding="utf-8")
    path = tmp_path / "cpu.toml"
    for pattern in ("a{99999999999}", "(" * 3000 + ")" * 3000):
        text = good + f'\n[paths.odd]\nactive = ["{pattern}"]\n'
        refused(path, text, lambda: load_box(path), "paths.odd.active", "expression", kind=DeploymentError)


def test_the_gate_tells_the_user(tmp_path: Path, judge_stream: Callable[..., tuple[int, str]]) -> None:
    """Five and five starts at 80 of 100, against a baseline that says that lower is better."""

    def plain(index: int, rate: float, **changes: Any) -> StartRecord:
        rate *= 1 + 0.002 * (index % 5)
        metrics = [Metric.of("kv_tokens", 20000), Metric.of("decode_tok_s", rate, "single_stream", 2)]
        metrics.append(Metric.of("ttft_ms", 2000 / rate, "single_stream", 2))
        return served_record(index, deployment="baseline", metrics=metrics, **changes)

    old = [plain(n, 100.0, id=f"b{n}") for n in range(10)]
    stored = baseline_from_records(old, "first", saved_at=MOMENT.format(30))
    path = write_baseline(stored, tmp_path / "baselines")
    for n in range(5):
        write_record(plain(n, 80.0, id=f"s{n}"), tmp_path / "new")
        write_record(plain(n, 80.0, id=f"f{n}", role="stage2"), tmp_path / "new")
    code, text = judge_stream(tmp_path / "new")
    assert code == 1
    assert "regression" in text
    path.write_text(path.read_text().replace('"better": "higher"', '"better": "lower"'))
    code, text = judge_stream(tmp_path / "new")
    assert code not in (0, 5)
    assert "Traceback" not in text
    assert f"{path}: metrics/kv_tokens/better = 'lower'" in text
    assert "improvement" not in text


def test_a_metric_is_made_from_the_catalogue_alone() -> None:
    made = Metric.of("kv_tokens", 5.0, pinned=False)
    assert (made.unit, made.kind, made.better) == ("tokens", "counted", "higher")
    with pytest.raises(KeyError):
        Metric.of("tok_s", 5.0)
