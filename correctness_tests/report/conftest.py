"""Runs judged from records, as a user would, for the tests of the files that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from report_cases import baseline_of, records_of

from fixtures.gate.baselines import write_baseline
from fixtures.records.store import write_record

DEPLOYMENT = "eagle3"


@dataclass(frozen=True)
class Judged:
    """What a judged run left: its exit code, its terminal text, and the folder of its files."""

    code: int
    text: str
    folder: Path

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@pytest.fixture
def judge(suite: Callable[..., tuple[int, str]], tmp_path: Path) -> Callable[..., Judged]:
    """Judge `count` starts that are `slower` by this share; `fail` makes the last one a failed start."""

    def run(slower: float = 0.0, *options: str, count: int = 5, fail: bool = False) -> Judged:
        results, baselines = tmp_path / "results", tmp_path / "baselines"
        write_baseline(baseline_of(records_of(DEPLOYMENT, 10, seed=1, name="b")), baselines)
        records = records_of(DEPLOYMENT, count, seed=2, slower=slower)
        records += [
            replaced(record, "stage2") for record in records_of(DEPLOYMENT, count, seed=3, slower=slower, name="f")
        ]
        if fail:
            records[-1].status, records[-1].role = "measurement failed", "stage1"
            records[-1].failure = {"cause": "killed", "message": "the server was killed", "lines": ["last words"]}
        for record in records:
            write_record(record, results)
        code, text = suite(
            "-m",
            "perf",
            "--box=cpu",
            f"--deployment={DEPLOYMENT}",
            "--workload=single_stream",
            f"--from-results={results}",
            f"--baselines={baselines}",
            *(option.replace("@", f"{tmp_path}/") for option in options),
        )
        return Judged(code, text, tmp_path)

    return run


def replaced(record, role):
    """The record in another role."""
    record.role = role
    return record
