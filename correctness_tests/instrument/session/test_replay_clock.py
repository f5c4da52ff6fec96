"""pytest-benchmark gets the samples that were measured, through its public interface."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

INNER = """
import json, pathlib, pytest
from fixtures.session.replay_clock import CLOCK
SAMPLES = json.loads(pathlib.Path("samples.json").read_text())

@pytest.mark.benchmark(group="g", timer=CLOCK)
def test_it(benchmark):
    CLOCK.replay(benchmark, SAMPLES)
"""


@pytest.mark.parametrize(
    "samples",
    [[0.25], [0.1, 0.2, 0.7, 1e-4, 3.0], [0.1, math.nan, 0.2], [math.inf, 0.0, -1.0, 0.3]],
    ids=["one", "five", "NaN", "no figures"],
)
def test_the_saved_run_has_the_samples_that_are_figures(tmp_path, samples, pytestconfig):
    (tmp_path / "samples.json").write_text(json.dumps(samples))
    (tmp_path / "test_inner.py").write_text(INNER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-json=out.json", "--rootdir=."],
        cwd=tmp_path,
        env={"PYTHONPATH": str(pytestconfig.rootpath), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (saved,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    figures = [each for each in samples if math.isfinite(each) and each > 0]
    assert saved["stats"]["data"] == pytest.approx(figures, rel=1e-12)
    assert saved["stats"]["rounds"] == len(figures)
    assert saved["extra_info"] == {"left_out": len(samples) - len(figures)}
