"""Runs judged from records, as a user would, for the tests of the files that they write."""

from __future__ import annotations

import os
import subprocess
import sys
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
def judge(pytestconfig: pytest.Config, tmp_path: Path) -> Callable[..., Judged]:
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
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-m",
                "perf",
                "-p",
                "no:cacheprovider",
                "--box=cpu",
                f"--deployment={DEPLOYMENT}",
                "--workload=single_stream",
                f"--from-results={results}",
                f"--baselines={baselines}",
                *(option.replace("@", f"{tmp_path}/") for option in options),
            ],
            cwd=pytestconfig.rootpath,
            # A worker of xdist tells by its environment that it is one; pytest-benchmark then writes no file.
            env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
            capture_output=True,
            text=True,
            timeout=240,
        )
        return Judged(done.returncode, done.stdout + done.stderr, tmp_path)

    return run


def replaced(record, role):
    """The record in another role."""
    record.role = role
    return record
