"""Nights on real servers: passes 60 % longer are a regression, a twin of the control is never one, in every try.

One try is a night of a few rounds, some five minutes on two cores; `NIGHT_TRIES=10` makes ten.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.deployments.loading import FOLDER
from fixtures.night.answers import placed
from fixtures.records.store import read_records

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.alone, pytest.mark.xdist_group("night")]

TRIES = int(os.environ.get("NIGHT_TRIES", "1"))
ROUNDS, BUDGET_M = 5, 20
HEADLINE = ("single_stream/decode_tok_s", "concurrency_8/output_tok_s")
ARMS = """
[deployments.slow]
description = "baseline with every forward pass 60 % longer"
extends = "baseline"

[deployments.slow.environment]
SGLANG_CPU_FAULT = "slow_pass:0.6"

[deployments.twin]
description = "baseline, unchanged"
extends = "baseline"
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """The `cpu` box with the two arms, every deployment under the workloads of the two headline metrics."""
    text = re.sub(r"(?s)headline = \[.*?\]", f"headline = {list(HEADLINE)!r}", (FOLDER / "cpu.toml").read_text())
    named = sorted({key.partition("/")[0] for key in HEADLINE})
    text = text.replace("workloads = [\"single_stream\", \"concurrency_8\", \"concurrency_32\", "
                        "\"long_prompt\", \"shared_prefix\"]", f"workloads = {named!r}")
    path = tmp_path / "cpu.toml"
    path.write_text(text + ARMS)
    return path


@pytest.mark.parametrize("attempt", range(TRIES))
@pytest.mark.timeout(BUDGET_M * 60 + 300)
def test_a_slower_arm_is_a_regression_and_a_twin_is_not(attempt, box, tmp_path, pytestconfig, capsys):
    results = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", f"--box={box}",
         "--deployment=baseline,slow,twin", f"--starts={ROUNDS}", f"--budget={BUDGET_M}m", f"--results={results}",
         f"--baselines={tmp_path / 'none'}"],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=BUDGET_M * 60 + 240,
    )
    answers = [line for line in done.stdout.splitlines() if re.match(r"\s*(slow|twin) \S+/\S+: ", line)]
    records = placed(read_records(results))
    rounds = max(each.night.round for each in records if each.night)
    starts = {name: sum(each.deployment == name for each in records) for name in ("slow", "twin")}
    with capsys.disabled():
        print(f"\ntry {attempt + 1}: {rounds} rounds, {starts}", *answers, sep="\n  ")
    found = {(line.split()[0], line.split()[1].rstrip(":")): line.split(": ")[1] for line in answers}
    assert "regression" in {found.get(("slow", key)) for key in HEADLINE}, done.stdout
    assert "improvement" not in {found.get(("slow", key)) for key in HEADLINE}, done.stdout
    assert {found.get(("twin", key)) for key in HEADLINE} <= {"no change", "too noisy to tell"}, done.stdout
    assert done.returncode == 1  # the slower arm blocks, and nothing else failed
