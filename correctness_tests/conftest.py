"""What all tests share: the suite itself in a process of its own, as a user runs it; and the table of planted faults at
the end of a run, whichever workers planted them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from planted_table import pytest_terminal_summary  # noqa: F401

Suite = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def suite(pytestconfig: pytest.Config) -> Suite:
    """`suite(ARGUMENTS, VARIABLE=...)`: `pytest ARGUMENTS` in the project; its exit code and text."""

    def run(*arguments: str, **variables: str) -> tuple[int, str]:
        # A worker of xdist tells by its environment that it is one; pytest-benchmark then writes no file.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=pytestconfig.rootpath, env=environment | variables, capture_output=True, text=True, timeout=240,
        )
        return done.returncode, done.stdout + done.stderr

    return run
