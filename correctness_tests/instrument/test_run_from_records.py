"""A whole run on records alone: baselines are saved from them, and slower records are a regression."""

from __future__ import annotations

import json
import random

import pytest

from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import write_record
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED

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
                id=f"{name}{index}", run="r", box="cpu", stack="cpu", deployment="baseline", role=role, index=index,
                started_at=moment, finished_at=moment, **values,
            ),
            directory,
        )


@pytest.fixture
def judge_folder(judge_folder):
    """Judge the plain deployment's single stream."""
    return lambda folder, *arguments: judge_folder(
        folder, "--deployment=baseline", "--workload=single_stream", *arguments
    )


@pytest.fixture
def saved(judge_folder, tmp_path):
    """A baseline of ten starts."""
    write_starts(tmp_path / "old", 10)
    code, text = judge_folder(tmp_path / "old", "--save-baseline=ten good starts")
    path = tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json"
    assert path.exists(), text
    assert code == 0, text
    assert json.loads(path.read_text())["reason"] == "ten good starts"
    return path


def test_the_same_speed_passes_and_a_slower_one_does_not(judge_folder, saved, tmp_path):
    write_starts(tmp_path / "same", 5, name="n", seed=2)
    code, text = judge_folder(tmp_path / "same")
    assert code == 0, text
    assert text.count("no change") >= 3

    write_starts(tmp_path / "slow", 5, name="n", seed=3, speed=90)
    write_starts(tmp_path / "slow", 5, name="f", seed=4, speed=90, role="stage2")
    code, text = judge_folder(tmp_path / "slow")
    assert code == 1, text
    assert "regression" in text
    assert "confirmed by 5 fresh starts" in text

    # The table is on the terminal, with the ratio and where the records are.
    assert "0.90" in text
    assert f"--from-results={tmp_path / 'slow'}" in text


def test_another_machine_is_not_compared(judge_folder, saved, tmp_path):
    write_starts(tmp_path / "there", 5, name="n", speed=50, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_folder(tmp_path / "there")
    assert code == 0, text
    assert "no comparable baseline" in text
    assert "machine" in text


def test_an_exact_metric_is_compared_on_any_machine(judge_folder, saved, tmp_path):
    write_starts(tmp_path / "there", 1, name="n", kv=19999, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_folder(tmp_path / "there")
    assert code == 1, text
    assert "19999" in text


def test_no_baseline_is_saved_over_an_alarm(judge_folder, saved, tmp_path):
    before = saved.read_text()
    write_starts(tmp_path / "slow", 10, name="n", seed=3, speed=80)
    code, text = judge_folder(tmp_path / "slow", "--save-baseline=it is fine")
    assert code == 1, text
    assert "open alarm" in text
    assert saved.read_text() == before


def test_too_few_starts_are_no_baseline(judge_folder, tmp_path):
    write_starts(tmp_path / "few", 3)
    code, text = judge_folder(tmp_path / "few", "--save-baseline=three")
    assert code == 1, text
    assert "too few" in text


def test_a_failed_start_fails_the_run(judge_folder, saved, tmp_path):
    failure = {"cause": "killed", "message": "baseline: the server was killed", "lines": []}
    write_starts(tmp_path / "dead", 1, name="n", status="measurement failed", failure=failure)
    code, text = judge_folder(tmp_path / "dead")
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "baseline: the server was killed" in text


def test_start_pairs_are_not_taken_for_starts(judge_folder, tmp_path):
    """Both sides of a pair lie in one folder: pooled, a regression would be averaged away."""
    write_starts(tmp_path / "pairs", 4, role="paired")
    code, text = judge_folder(tmp_path / "pairs")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "holds start pairs of --against only" in text
    code, text = judge_folder(tmp_path / "pairs", f"--compare={tmp_path / 'pairs'},cu128")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "start pairs" in text
