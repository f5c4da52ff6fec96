"""Paired mode on real servers: passes twice as long are a regression, an unchanged deployment is not.

Smaller slowdowns need a machine of their own: on a shared one four start pairs resolve
26 % in one hour and 109 % in another.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.deployments.loading import FOLDER

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.alone, pytest.mark.xdist_group("paired")]

START_PAIRS = int(os.environ.get("PAIRED_START_PAIRS", "4"))
ARMS = """
[deployments.slow]
description = "baseline with every forward pass twice as long"
extends = "baseline"

[deployments.slow.environment]
SGLANG_CPU_FAULT = "slow_pass:1"

[deployments.same]
description = "baseline, unchanged"
extends = "baseline"
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """The `cpu` box with two more arms."""
    path = tmp_path / "cpu.toml"
    path.write_text((FOLDER / "cpu.toml").read_text() + ARMS)
    return path


@pytest.mark.timeout(5400)
def test_a_planted_slowdown_is_a_regression_and_an_unchanged_pair_is_not(box, tmp_path, pytestconfig, capsys):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", f"--box={box}",
         "perf_tests/test_against.py::test_decode_rate_against",
         "--deployment=slow,same", "--workload=single_stream", "--against=baseline", f"--starts={START_PAIRS}",
         f"--results={tmp_path / 'results'}", f"--junit-xml={tmp_path / 'junit.xml'}"],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=5300,
    )
    with capsys.disabled():
        print("\n" + "\n".join(line for line in done.stdout.splitlines() if "start pairs" in line))
    found = verdicts((tmp_path / "junit.xml").read_text())
    assert found["test_decode_rate_against", "slow-single_stream"] == "regression", done.stdout
    assert done.returncode == 1
    same = {name: verdict for name, verdict in found.items() if name[1] == "same-single_stream"}
    assert same
    assert set(same.values()) <= {"no change", "too noisy to tell"}, done.stdout
    assert re.search(r"slow single_stream/decode_tok_s: \d+ start pairs can show [-+][\d.]+ % or more", done.stdout)


def verdicts(junit: str) -> dict[tuple[str, str], str]:
    """(test, parameters) -> verdict, from the properties in pytest's JUnit file."""
    cases = re.finditer(r'<testcase [^>]*name="(\w+)\[([^"\]]+)\]".*?</testcase>', junit, re.S)
    told = ((each[1], each[2], re.search(r'name="verdict" value="([^"]+)"', each[0])) for each in cases)
    return {(test, given): verdict[1] for test, given, verdict in told if verdict}
