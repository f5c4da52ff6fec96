"""What the tests of the instrument share."""

from __future__ import annotations

import pytest


@pytest.fixture
def judge_folder(suite, tmp_path):
    """Judge a folder of records of the `cpu` box as a user would; returns (exit code, text)."""

    def judge(folder, *arguments):
        baselines = f"--baselines={tmp_path / 'baselines'}"
        return suite("-m", "perf", "--box=cpu", f"--from-results={folder}", baselines, *arguments)

    return judge


@pytest.fixture
def judge_stream(judge_folder):
    """Judge the plain deployment's single stream alone."""
    return lambda folder, *arguments: judge_folder(
        folder, "--deployment=baseline", "--workload=single_stream", *arguments
    )
