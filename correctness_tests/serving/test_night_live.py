"""Nights on real servers: passes 60 % longer are a regression, a twin of the control is never one, in every try.

`NIGHT_ARMS=10` has ten of each in one night of two rounds (twenty-two minutes on two cores).
"""

from __future__ import annotations

import json
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

EACH = int(os.environ.get("NIGHT_ARMS", "1"))
ROUNDS = 4 if EACH == 1 else 2
BUDGET_M = 20 * EACH
HEADLINE = ("single_stream/decode_tok_s",)
SLOW, TWINS = [f"slow{n + 1}" for n in range(EACH)], [f"twin{n + 1}" for n in range(EACH)]
ARM = """
[deployments.{name}]
description = "baseline{what}"
extends = "baseline"
"""
FAULT = """
[deployments.{name}.environment]
SGLANG_CPU_FAULT = "slow_pass:0.6"
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """The `cpu` box with the two arms, every deployment under the workload of one headline metric."""
    text = re.sub(r"(?s)headline = \[.*?\]", f"headline = {list(HEADLINE)!r}", (FOLDER / "cpu.toml").read_text())
    named = sorted({key.partition("/")[0] for key in HEADLINE})
    text = text.replace("workloads = [\"single_stream\", \"concurrency_8\", \"concurrency_32\", "
                        "\"long_prompt\", \"shared_prefix\"]", f"workloads = {named!r}")
    path = tmp_path / "cpu.toml"
    for name in SLOW:
        text += ARM.format(name=name, what=" with every forward pass 60 % longer") + FAULT.format(name=name)
    path.write_text(text + "".join(ARM.format(name=name, what=", unchanged") for name in TWINS))
    return path


@pytest.mark.timeout(BUDGET_M * 60 + 300)
def test_a_slower_arm_is_a_regression_and_a_twin_is_not(box, tmp_path, pytestconfig, capsys):
    results, verdicts = tmp_path / "results", tmp_path / "verdicts.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", f"--box={box}",
         f"--deployment={','.join(['baseline', *SLOW, *TWINS])}", f"--starts={ROUNDS}", f"--budget={BUDGET_M}m",
         f"--results={results}", f"--jsonl={verdicts}", f"--baselines={tmp_path / 'none'}"],
        cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=BUDGET_M * 60 + 240,
    )
    lines = [each for each in map(json.loads, verdicts.read_text().splitlines()) if "verdict" in each]
    found = {(each["deployment"], each["key"]): each for each in lines if each["key"] in HEADLINE}
    with capsys.disabled():
        for (name, key), each in sorted(found.items()):
            print(f"\n{name} {key}: {each['verdict']}: {each['reason']}", end="")
    assert all("regression" in {found[name, key]["verdict"] for key in HEADLINE} for name in SLOW), done.stdout
    assert all(found[name, key]["verdict"] != "improvement" for name in SLOW for key in HEADLINE), done.stdout
    called = {found[name, key]["verdict"] for name in TWINS for key in HEADLINE}
    assert called <= {"no change", "too noisy to tell"}, done.stdout
    assert done.returncode == 1  # the slower arms block, and nothing else failed
    records = placed(read_records(results))
    assert max(each.night.round for each in records if each.night) <= ROUNDS
