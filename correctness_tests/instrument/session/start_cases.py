"""Folders of starts, and of start pairs, of the plain deployment of the `cpu` box."""

from __future__ import annotations

import random

from fixtures.gate.paired import balanced_order
from fixtures.records.metric import Metric
from fixtures.records.start import Block, PairSide, StartRecord
from fixtures.records.store import write_record

ENVIRONMENT = {"machine": "a", "torch": "2.14.1", "workload single_stream": "w"}


def write_starts(directory, count, *, speed=100.0, kv=20000.0, role="stage1", name="s", seed=1, **changes):
    noise = random.Random(seed)
    for index in range(count):
        factor = 1 + noise.gauss(0, 0.005)
        metrics = [
            Metric("kv_tokens", kv, "tokens", "exact", "higher"),
            Metric("decode_tok_s", speed * factor, "tok/s", "timing", "higher", "single_stream", 12),
            Metric("ttft_ms", 20 * factor, "ms", "timing", "lower", "single_stream", 12),
        ]
        moment = f"2026-01-01T00:{index:02d}:00.000Z"
        values = {"environment": ENVIRONMENT, "metrics": metrics} | changes
        write_record(
            StartRecord(
                id=f"{name}{index}", role=role, index=index, started_at=moment, finished_at=moment,
                **({"deployment": "baseline", "run": "r", "box": "cpu", "stack": "cpu"} | values),
            ),
            directory,
        )


def write_pairs(directory, slower, *, stage1=4, seed=5, without=None):
    """Start pairs of `baseline` with itself at HEAD; the candidate's rate is lower by these shares."""
    noise = random.Random(seed)
    order = balanced_order(4)
    for index, share in enumerate(slower):
        speed = 100 * (1 + noise.gauss(0, 0.1))
        for arm, factor in ((0, 1.0), (1, 1 - share)):
            rates = [speed * factor * (1 + noise.gauss(0, 0.01)) for _ in order]
            blocks = [
                [
                    Metric("decode_tok_s", rate, "tok/s", "timing", "higher", "single_stream", 2),
                    Metric("ttft_ms", 2000 / rate, "ms", "timing", "lower", "single_stream", 2),
                ]
                for rate in rates
            ]
            moment = f"2026-01-01T00:{index:02d}:0{arm}.000Z"
            record = StartRecord(
                id=f"p{index}{arm}", run="r", box="cpu", stack="cpu", deployment="baseline", role="paired",
                index=index, started_at=moment, finished_at=moment, environment=ENVIRONMENT, metrics=blocks[0],
                against="" if arm else "against HEAD",
                pair=PairSide("baseline", index, order, stage1, [Block("single_stream", tuple(b)) for b in blocks]),
            )  # fmt: skip
            if record.id != without:
                write_record(record, directory)
