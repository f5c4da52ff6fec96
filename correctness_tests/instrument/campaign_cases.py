"""Folders of records as a run on the GPU box would leave them, written by the suite's own writers."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from fixtures.records.correctness import AllReduceChecked, Correctness, ReplayChecked, write_correctness
from fixtures.records.metric import Metric
from fixtures.records.passes import PassRow, PassSummary
from fixtures.records.start import StartRecord
from fixtures.records.store import write_record

BOX = "pcie_blackwell"
STARTS = 10
MOMENT = "2026-07-01T00:{:02d}:00.000Z"
ENVIRONMENT = {
    "machine": "a",
    "sglang": "0.5.23",
    "torch": "2.14.1",
    "driver": "590.48.01",
    "server.tp_size": 8,
    "workload single_stream": "w",
}
"""Of every deployment; what an approach sets comes on top."""


def passes(verify: bool) -> dict[str, PassSummary]:
    """Pass counters of one workload: a server that verifies drafts, or one that decodes token by token."""
    mode = "target_verify" if verify else "decode"

    def row(role: str, mode: str, seconds: float) -> PassRow:
        return PassRow(role, mode, 100, seconds, 300, 100 * seconds, {122: 100}, (43008,))

    rows = [row("target", mode, 0.01)] + ([row("draft", "decode", 0.0005)] if verify else [])
    return {"single_stream": PassSummary(tuple(rows))}


def start(deployment: str, index: int, rate: float, stack: str = "cu130", **changes: Any) -> StartRecord:
    """One start at `rate` tok/s; NaN: a server that gave no figure."""
    speculative = deployment.startswith("eagle3") or deployment.endswith("_eagle3")
    named = f"{stack}-{deployment}-{changes.get('role', 'stage1')}-{index}{changes.get('run', '')}"
    values: dict[str, Any] = {
        "id": named,
        "run": "r",
        "box": BOX,
        "stack": stack,
        "deployment": deployment,
        "role": "stage1",
        "index": index,
        "started_at": MOMENT.format(index),
        "finished_at": MOMENT.format(index),
        "environment": ENVIRONMENT | {"server.deployment": deployment},
        "passes": passes(speculative),
        "metrics": [Metric("decode_tok_s", rate, "tok/s", "timing", "higher", "single_stream", 12)],
    }
    return StartRecord(**(values | changes))


def write_starts(folder: Path, deployment: str, rate: float, count: int = STARTS, **changes: Any) -> None:
    """`count` starts around `rate` tok/s with a noise of 0.3 %."""
    noise = random.Random(f"{deployment} {rate} {changes.get('role')}")
    for index in range(count):
        value = rate * math.exp(noise.gauss(0, 0.003))
        write_record(start(deployment, index, value, **changes), folder)


def write_failed(folder: Path, deployment: str, cause: str, line: str = "a line of the log", **changes: Any) -> None:
    """One start that ended before it measured anything."""
    failure = {"cause": cause, "message": f"{deployment}: {cause}: {line}", "lines": [line]}
    failed = {"status": "measurement failed", "failure": failure, "metrics": [], "passes": {}}
    write_record(start(deployment, 0, math.nan, **(failed | changes)), folder)


def correctness(deployment: str, stack: str = "cu130", **changes: Any) -> Correctness:
    """Sums and outputs checked and found right, unless `changes` say otherwise."""
    values: dict[str, Any] = {
        "box": BOX,
        "stack": stack,
        "deployment": deployment,
        "judge": "baseline_bs128",
        "checked_at": MOMENT.format(0),
        "all_reduce": (AllReduceChecked("nccl", 8, calls=120),),
        "replay": ReplayChecked(2048, 0.01, 0.05),
    }
    return Correctness(**(values | changes))


def write_tried(
    folder: Path, deployment: str, rate: float, reference: str = "baseline_bs128", at: float = 89.5, **changes: Any
) -> None:
    """A deployment that ran, was right and reached `rate`, beside its reference; fresh starts confirm what is seen."""
    stack = changes.get("stack", "cu130")
    write_starts(folder, reference, at, **changes)
    write_starts(folder, deployment, rate, **changes)
    write_starts(folder, deployment, rate, role="stage2", **changes)
    write_correctness(correctness(deployment, stack), folder)
