"""What the tests of the instrument share."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def judge_folder(pytestconfig, tmp_path):
    """Judge a folder of records of the `cpu` box as a user would; returns (exit code, text)."""

    def judge(folder, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", "--box=cpu",
             f"--from-results={folder}", f"--baselines={tmp_path / 'baselines'}", *arguments],
            cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=240,
        )
        return done.returncode, done.stdout + done.stderr

    return judge
