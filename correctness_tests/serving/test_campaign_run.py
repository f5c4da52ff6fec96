"""The campaign's test as a user runs it, with real servers: EAGLE-3 tried, and EAGLE-3 that is silently off.

About four minutes on two cores: five starts. The box has the campaign's name and deployments, and serves the tiny pair
on the processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.campaign.approach import RATE
from fixtures.campaign.loading import box_of
from fixtures.deployments import load_box
from fixtures.deployments.loading import FOLDER
from fixtures.gate.baselines import Baseline, BaselineMetric, write_baseline
from fixtures.records.correctness import read_correctness
from fixtures.records.store import read_records

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("campaign run")]

STACK = "cu130"
SLOW = 2.0
"""A reported rate that any real server here beats, tok/s."""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """The cpu box under the campaign's name, with a deployment for each of the campaign's."""
    text = (FOLDER / "cpu.toml").read_text(encoding="utf-8").replace('stacks = ["cpu"]', f'stacks = ["{STACK}"]')
    known = load_box("cpu").deployments
    for name, each in load_box(box_of()).deployments.items():
        if name not in known:
            like = "eagle3" if each.speculative else "baseline"
            text += f'\n[deployments.{name}]\ndescription = "as {like}"\nextends = "{like}"\n'
    path = tmp_path / f"{box_of()}.toml"
    path.write_text(text.replace("deadline_s = 240", "deadline_s = 900"), encoding="utf-8")
    return path


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    metric = BaselineMetric(
        RATE, "decode_tok_s", "single_stream", "tok/s", "reported", "higher", reported=(SLOW,)
    )
    folder = tmp_path / "baselines"
    told = Baseline(
        box_of(), STACK, "baseline", "reported", "a rate to beat", "2026-07-01T00:00:00Z", metrics={RATE: metric}
    )
    write_baseline(told, folder)
    return folder


KV, CAMPAIGN = "perf_tests/test_kv_capacity.py", "perf_tests/test_campaign.py"
RUNS = {"": (KV, CAMPAIGN), "silent_refusal": (CAMPAIGN,)}
"""The fault, and the tests of the run. Where another test has measured the server, that start has answered too."""


@pytest.mark.parametrize("fault", RUNS)
def test_an_approach_on_real_servers(
    box: Path, baselines: Path, tmp_path: Path, pytestconfig: pytest.Config, fault: str
) -> None:
    results = tmp_path / "results"
    command = [
        sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", *RUNS[fault],
        f"--box={box}", "--deployment=eagle3", "--workload=single_stream", f"--results={results}",
        f"--baselines={baselines}",
    ]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment = kept | ({"SGLANG_CPU_FAULT": fault} if fault else {})
    done = subprocess.run(
        command, cwd=pytestconfig.rootpath, env=environment, capture_output=True, text=True, timeout=1700
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    checked = read_correctness(results, "eagle3")
    assert checked is not None
    assert checked.correct, "the outputs are those of the plain server either way"
    (record,) = [each for each in read_records(results) if each.deployment == "eagle3"]
    assert (results / "correctness" / "eagle3").exists() is bool(fault), "a start of its own only where it is needed"
    if fault:
        assert "eagle3 on cu130: first outcome: unsupported" in text
        assert record.metrics == []
        assert "tok/s" not in text.split("campaign: outcomes")[1]
    else:
        assert "eagle3 on cu130: first outcome: improves" in text
        assert f"against the reported {SLOW:g} tok/s" in text
        assert f'record = "{record.id}"' in text
