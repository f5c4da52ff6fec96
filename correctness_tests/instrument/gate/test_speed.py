"""The gate costs nothing beside a server start. CPU time of this process, so that neighbours do not matter."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import numpy as np

from fixtures.gate.decide import decide
from fixtures.gate.spec import MetricSpec, Starts
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import read_records

RECORDS, METRICS = 1000, 5


def test_fifty_metrics_of_twenty_starts_each_within_a_second():
    rng = np.random.default_rng(0)
    sides = [100 * np.exp(rng.normal(0, 0.02, (3, 20))) for _ in range(50)]
    decide(MetricSpec("warm-up", "timing", "lower"), *sides[0], share=0.01 / 50)
    began = time.process_time()
    for index, (base, first, second) in enumerate(sides):
        decide(MetricSpec(f"m{index}", "timing", "lower"), base, first * 1.05, second * 1.05, share=0.01 / 50)
    assert time.process_time() - began <= 1.0


def test_a_tenth_of_ten_thousand_records_is_loaded_and_judged_within_a_tenth(tmp_path: Path):
    """10,000 records in 10 s and 1 GiB is 1,000 in 1 s and 0.1 GiB; a factor of three for a slow machine."""
    rng = np.random.default_rng(0)
    environment = {f"component {index}": index for index in range(60)}
    for index in range(RECORDS):
        metrics = [
            Metric("decode_tok_s", float(100 * np.exp(rng.normal(0, 0.01))), "tok/s", "timing", "higher", f"w{m}", 64)
            for m in range(METRICS)
        ]
        record = StartRecord(
            id=f"s{index}",
            run="r",
            box="cpu",
            stack="cpu",
            deployment=f"d{index % 50}",
            role="stage1",
            index=index // 50,
            started_at="2026-11-29T10:00:00Z",
            finished_at="2026-11-29T10:00:30Z",
            environment=environment,
            metrics=metrics,
        )
        (tmp_path / f"s{index}.start.json").write_text(json.dumps(record.to_json()), encoding="utf-8")
    began = time.process_time()
    records = read_records(tmp_path)
    judged = 0
    for deployment in {record.deployment for record in records}:
        own = [record for record in records if record.deployment == deployment]
        for m in range(METRICS):
            values = [metric.value for record in own if (metric := record.metric(f"w{m}/decode_tok_s"))]
            ids = tuple(record.id for record in own)
            sides = [Starts(tuple(values[a:b]), ids[a:b]) for a, b in ((0, 10), (10, 15), (15, 20))]
            metric = MetricSpec(f"w{m}/decode_tok_s", "timing", "higher")
            judged += decide(metric, *sides, share=0.01 / 250).candidate_starts
    assert time.process_time() - began <= 3.0
    assert judged == 50 * METRICS * 5
    tracemalloc.start()
    again = read_records(tmp_path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(again) == RECORDS
    assert held <= 2**30 * RECORDS / 10_000
