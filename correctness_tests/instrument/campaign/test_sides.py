"""Can two stacks be compared from folders alone: results of two runs, or the stored baselines?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures.campaign.approach import Approach
from fixtures.campaign.compare_stacks import RecordedSide, StackComparison, compare_stacks
from fixtures.campaign.compare_stacks_text import render
from fixtures.campaign.loading import load_approaches
from fixtures.campaign.sides import side_of, side_of_baselines, side_of_results
from fixtures.errors import RecordError
from fixtures.gate.baselines import Baseline, BaselineMetric, write_baseline
from fixtures.gate.question import Question, budget
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import write_record

RATES = {"cu128": 89.5, "cu130": 80.0}
ENVIRONMENTS = {
    "cu128": {"cuda": "12.8", "sglang": "0.5.10.post1"},
    "cu130": {"cuda": "13.0", "sglang": "0.5.23"},
}


def values(stack: str, count: int = 10) -> list[float]:
    return [RATES[stack] * float(np.exp(each)) for each in np.random.default_rng(3).normal(0, 0.003, count)]


def write_starts(folder: Path, stack: str) -> None:
    for index, rate in enumerate(values(stack)):
        record = StartRecord(
            id=f"{stack}-{index}",
            run="run",
            box="pcie_blackwell",
            stack=stack,
            deployment="baseline_bs128",
            role="stage1",
            index=index,
            started_at="2026-07-01T00:00:00.000Z",
            finished_at="2026-07-01T00:10:00.000Z",
            environment=dict(ENVIRONMENTS[stack]),
        )
        record.metrics = [Metric("decode_tok_s", rate, "tok/s", "timing", "higher", "single_stream", 20)]
        write_record(record, folder)


def compared(old: RecordedSide, new: RecordedSide, approaches: Mapping[str, Approach]) -> StackComparison:
    return compare_stacks(old, new, approaches, budget(Question(*each) for each in {*old.samples} & {*new.samples}))



def test_two_results_folders(tmp_path: Path) -> None:
    for stack in RATES:
        (tmp_path / stack).mkdir()
        write_starts(tmp_path / stack, stack)
    found = compared(side_of_results(tmp_path / "cu128"), side_of_results(tmp_path / "cu130"), load_approaches())
    assert [each.component for each in found.differences] == ["cuda", "sglang"]
    assert [each.verdict for each in found.metrics] == ["regression"]
    assert "regression: baseline_bs128 single_stream/decode_tok_s" in render(found)


def test_one_folder_with_two_stacks_needs_a_name(tmp_path: Path) -> None:
    for stack in RATES:
        write_starts(tmp_path, stack)
    with pytest.raises(RecordError, match="cu128, cu130: name one"):
        side_of_results(tmp_path)


def test_stored_baselines(tmp_path: Path) -> None:
    for stack, environment in ENVIRONMENTS.items():
        key = "single_stream/decode_tok_s"
        ids = tuple(f"{stack}-{index}" for index in range(10))
        metric = BaselineMetric(
            key,
            "decode_tok_s",
            "single_stream",
            "tok/s",
            "timing",
            "higher",
            starts=tuple(values(stack)),
            ids=ids,
        )
        baseline = Baseline(
            "pcie_blackwell",
            stack,
            "baseline_bs128",
            "measured",
            "first",
            "2026-07-01T00:00:00Z",
            environment={**environment, "workload single_stream": "w"},
            workloads={"single_stream": "w"},
            metrics={key: metric},
            starts=ids,
        )
        write_baseline(baseline, tmp_path)
    sides = [side_of_baselines(tmp_path, "pcie_blackwell", stack) for stack in RATES]
    found = compared(sides[0], sides[1], load_approaches())
    assert [each.component for each in found.differences] == ["cuda", "sglang"]
    assert [each.verdict for each in found.metrics] == ["regression"]


def test_a_stored_p99_has_the_requests_that_it_was_saved_with(tmp_path: Path) -> None:
    """The file does not keep their number; a p99 of too few is never measured."""
    key = "single_stream/ttft_p99_ms"
    for stack, seed in (("cu128", 1), ("cu130", 2)):
        ids = tuple(f"{stack}-{index}" for index in range(10))
        figures = tuple(30 * np.exp(np.random.default_rng(seed).normal(0, 0.003, 10)))
        metric = BaselineMetric(key, "ttft_p99_ms", "single_stream", "ms", "timing", "lower", figures, ids)
        stored = Baseline("pcie_blackwell", stack, "baseline_bs128", "measured", "first", "2026-07-01T00:00:00Z")
        served = {"environment": {"workload single_stream": "w"}, "workloads": {"single_stream": "w"}}
        write_baseline(replace(stored, metrics={key: metric}, starts=ids, **served), tmp_path)
    sides = [side_of_baselines(tmp_path, "pcie_blackwell", stack) for stack in ("cu128", "cu130")]
    assert [each.verdict for each in compared(sides[0], sides[1], {}).metrics] == ["no change"]


def test_a_reported_figure_is_compared_as_such_and_never_as_a_measurement(tmp_path: Path) -> None:
    key = "single_stream/decode_tok_s"
    metric = BaselineMetric(key, "decode_tok_s", "single_stream", "tok/s", "reported", "higher", reported=(89.5,))
    baseline = Baseline(
        "pcie_blackwell",
        "cu128",
        "baseline_bs128",
        "reported",
        "told",
        "2026-07-01T00:00:00Z",
        metrics={key: metric},
    )
    write_baseline(baseline, tmp_path)
    (tmp_path / "new").mkdir()
    write_starts(tmp_path / "new", "cu130")
    reported = side_of_baselines(tmp_path, "pcie_blackwell", "cu128")
    measured = side_of_results(tmp_path / "new")
    found = compared(reported, measured, load_approaches()).metrics
    assert [each.verdict for each in found] == ["regression"]
    assert found[0].judgement is not None
    assert "reported 89.5" in found[0].judgement.reason
    backwards = compared(measured, reported, load_approaches()).metrics
    assert [each.verdict for each in backwards] == ["no comparable baseline"]


def test_a_side_is_a_folder_or_a_stack(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    write_starts(tmp_path / "results", "cu130")
    assert side_of(str(tmp_path / "results"), "pcie_blackwell", tmp_path).stack == "cu130"
    assert side_of("cu128", "pcie_blackwell", tmp_path).stack == "cu128"
    with pytest.raises(RecordError, match=r"'cu129': no results folder and no stack; did you mean 'cu128'"):
        side_of("cu129", "pcie_blackwell", tmp_path)


def test_a_stack_without_baselines_is_an_empty_side(tmp_path: Path) -> None:
    empty = side_of_baselines(tmp_path, "pcie_blackwell", "cu130")
    assert not empty.samples
    assert not empty.deployments
