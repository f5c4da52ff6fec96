"""Runs made of numbers alone, of any size, for the tests of the reports."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fixtures.campaign.loading import load_approaches
from fixtures.deployments import Box, load_box
from fixtures.gate.baselines import Baseline, BaselineMetric
from fixtures.gate.decide import decide
from fixtures.gate.spec import Judgement
from fixtures.records.metric import Metric
from fixtures.records.passes import PassRow, PassSummary
from fixtures.records.start import StartRecord
from fixtures.report.history import History
from fixtures.report.next_steps import Repeat
from fixtures.report.page.build import Page, build_page
from fixtures.report.view import RunView, view_of
from fixtures.serving.client_results import RequestResult, WorkloadResult

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
# Workload, name, value, unit, kind, better.
METRICS = [
    ("single_stream", "decode_tok_s", 82.0, "tok/s", "timing", "higher"),
    ("single_stream", "ttft_ms", 31.0, "ms", "timing", "lower"),
    ("single_stream", "itl_ms", 12.1, "ms", "timing", "lower"),
    ("single_stream", "accept_length", 2.8, "tokens/pass", "counted", "higher"),
    ("single_stream", "verify_ms", 9.4, "ms", "timing", "lower"),
    ("single_stream", "all_reduces_per_pass", 122.0, "all-reduces", "exact", "same"),
    ("single_stream", "bytes_per_all_reduce", 43008.0, "bytes", "exact", "same"),
    ("concurrency_8", "output_tok_s", 410.0, "tok/s", "timing", "higher"),
    ("concurrency_8", "ttft_ms", 55.0, "ms", "timing", "lower"),
    ("concurrency_32", "output_tok_s", 900.0, "tok/s", "timing", "higher"),
    ("concurrency_32", "ttft_ms", 150.0, "ms", "timing", "lower"),
    (None, "kv_tokens", 20000.0, "tokens", "exact", "higher"),
]
WORKLOADS = tuple(dict.fromkeys(workload for workload, *_ in METRICS if workload))
ENVIRONMENT = {
    "machine": "a", "torch": "2.14.1", "gpus": "none", "server.max_total_tokens": 20000,
    **{f"workload {name}": "w" for name in WORKLOADS},
    **{f"server.option_{n}": n for n in range(120)},
}  # fmt: skip


def records_of(
    deployment: str, count: int, *, slower: float = 0.0, seed: int = 1, name: str = "s"
) -> list[StartRecord]:
    """`count` usable starts; `slower` is the share by which timing metrics are worse."""
    noise = random.Random(seed)
    return [_record(deployment, index, slower, noise, name) for index in range(count)]


def _record(deployment: str, index: int, slower: float, noise: random.Random, name: str) -> StartRecord:
    metrics = []
    for workload, metric, value, unit, kind, better in METRICS:
        cost = (1 + slower) * (1 + noise.gauss(0, 0.006)) if kind == "timing" else 1.0
        shown = value / cost if better == "higher" else value * cost
        metrics.append(Metric(metric, shown, unit, kind, better, workload, 12))
    moment = (BEGAN + timedelta(minutes=index)).isoformat().replace("+00:00", "Z")
    passes = (
        PassRow("target", "target_verify", 100, 0.02, all_reduces={122: 100}, all_reduce_share=0.62),
        PassRow("draft", "decode", 200, 0.002),
    )
    return StartRecord(
        id=f"{deployment}-{name}{index}",
        run="r",
        box="cpu",
        stack="cpu",
        deployment=deployment,
        role="stage1",
        index=index,
        started_at=moment,
        finished_at=moment,
        environment=ENVIRONMENT | {"model": deployment},
        ready_s=12.5,
        log=f"{deployment}-{name}{index}/server.log",
        workloads={name: _workload(slower, name) for name in WORKLOADS},
        passes={"single_stream": PassSummary(passes)},
        metrics=metrics,
    )


def _workload(slower: float, name: str) -> dict[str, object]:
    requests = []
    for number in range(3):
        moments = tuple((1 + slower) * (0.03 + 0.012 * (1 + number / 50) * token) for token in range(40))
        histogram = (3, 2, 2, 5) if name == "single_stream" else ()
        requests.append(
            RequestResult(f"p{number}", 9, 40, 0, 0.0, moments, "length", 12, 40 / 12, 21, 36, 0, histogram)
        )
    return WorkloadResult(name, 1 if name == "single_stream" else 8, tuple(requests), 2.0, 1).to_json()


def baseline_of(records: list[StartRecord]) -> Baseline:
    """The baseline that these starts make."""
    first = records[0]
    metrics = {
        metric.key: BaselineMetric(
            metric.key,
            metric.name,
            metric.workload,
            metric.unit,
            metric.kind,
            metric.better,
            tuple(record.metric(metric.key).value for record in records),
            tuple(record.id for record in records),
        )
        for metric in first.metrics
    }
    return Baseline(
        "cpu",
        "cpu",
        first.deployment,
        "measured",
        "test",
        first.started_at,
        environment=dict(first.environment),
        workloads={name: str(first.environment[f"workload {name}"]) for name in first.workloads},
        metrics=metrics,
        starts=tuple(record.id for record in records),
    )


Rows = dict[tuple[str, str], Judgement]
CPU: Box = load_box("cpu")


def judged(
    records: list[StartRecord], baseline: Baseline | None, share: float = 0.001
) -> dict[tuple[str, str], Judgement]:
    """The gate's judgement of every metric of one deployment."""
    rows = {}
    for metric in records[0].metrics:
        values = [record.metric(metric.key).value for record in records]
        known = baseline.metrics[metric.key].starts if baseline else None
        rows[records[0].deployment, metric.key] = decide(metric, known, values, share=share)
    return rows


def ranks_records() -> list[StartRecord]:
    """Starts of ranks that timed two back ends at five sizes."""
    found = []
    for backend, mode, base, rate in (("nccl", "eager", 60.0, 400.0), ("one_shot", "graph", 9.0, 900.0)):
        timed = {
            f"{backend}-{size}": {
                "backend": backend, "world_size": 8, "mode": mode, "bytes": size,
                "seconds": [(base + size / rate) / 1e6],
            }
            for size in (1024, 14336, 43008, 262144, 1 << 20)
        }  # fmt: skip
        moment = BEGAN.isoformat().replace("+00:00", "Z")
        name = f"all_reduce_{backend}_8"
        found.append(StartRecord(name, "r", "cpu", "cpu", name, "stage1", 0, moment, moment, all_reduces=timed))
    return found


def view_from(rows: Rows, records: list[StartRecord], **more: object) -> RunView:
    """The view of these verdicts and records, on the `cpu` box."""
    values = {
        "box": CPU, "box_line": "box cpu: no GPU", "stack": "cpu", "results": Path("/results"),
        "repeat": Repeat("cpu", 1), "baselines": {}, "said": ["a note"],
    }  # fmt: skip
    return view_of(rows=rows, records=records, **(values | more))


def view(
    names: list[str], starts: int, *, slower: float = 0.0, baselines: bool = True, ranks: bool = True, **more: object
) -> RunView:
    """A whole run; the first deployment is `slower`."""
    rows: dict[tuple[str, str], Judgement] = {}
    records: list[StartRecord] = ranks_records() if ranks else []
    known: dict[str, Baseline | None] = {}
    for number, name in enumerate(names):
        old = records_of(name, starts, seed=2 * number, name="b")
        new = records_of(name, starts, seed=2 * number + 1, slower=0.0 if number else slower)
        known[name] = baseline_of(old) if baselines else None
        rows |= judged(new, known[name])
        records += new
    return view_from(rows, records, baselines=known, repeat=Repeat("cpu", starts), **more)


def page(shown: RunView, history: History | None = None) -> Page:
    """The page of a view."""
    return build_page(shown, history, "pcie_blackwell", load_approaches())
