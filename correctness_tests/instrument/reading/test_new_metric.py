"""docs/extending.md, "A metric", followed in a copy of the project: three files, and the new metric is measured,
recorded, saved, judged and asked about."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = {
    "fixtures/catalogue.py": (
        '        CatalogueEntry("step_ms", ',
        '        CatalogueEntry("ttlt_ms", "ms", "timing", "lower"),\n        CatalogueEntry("step_ms", ',
    ),
    "fixtures/records/measure.py": (
        '        "itl_ms": ',
        '        "ttlt_ms": (_percentile([1e3 * (each.token_times_s[-1] - each.sent_s) for each in requests], 50),'
        " count),\n"
        '        "itl_ms": ',
    ),
    "perf_tests/test_latency.py": (
        '@pytest.mark.only("concurrent")\n',
        "def test_time_to_last_token(judge, deployment, workload):\n"
        '    """The median over requests, milliseconds."""\n'
        '    judge("ttlt_ms")\n\n\n@pytest.mark.only("concurrent")\n',
    ),
}
"""File -> what stands there, and what is put in its place."""

MEASURED = """
import sys
from pathlib import Path
from fixtures.gate.baselines import load_baseline, write_baseline
from fixtures.gate.saving import baseline_from_records
from fixtures.records.measure import measure
from fixtures.records.start import StartRecord
from fixtures.records.store import read_records, write_record
from fixtures.serving.client_results import RequestResult, WorkloadResult

folder = Path(sys.argv[1])
for index in range(15):
    times = tuple((1.2 if index >= 10 else 1.0) * (1 + index % 5 / 500) * moment for moment in (0.5, 0.6, 0.7))
    request = RequestResult("p", 9, 3, 0, 0.0, times, "length")
    result = WorkloadResult("single_stream", 1, (request,), 0.8, 1)
    for role in ("stage1", "stage2") if index >= 10 else ("stage1",):
        moment = f"2026-01-01T00:{index:02}:00Z"
        record = StartRecord(
            f"{role}{index}", "r", "cpu", "cpu", "baseline", role, index % 10, moment, moment,
            environment={"machine": "a", "server.max_total_tokens": 9, "workload single_stream": "w"},
            metrics=measure([result], {"max_total_tokens": 9, "max_total_num_tokens": 9}, speculative=False,
                            tensor_parallel=False),
        )
        write_record(record, folder / ("new" if index >= 10 else "old"))
made = baseline_from_records(read_records(folder / "old"), "first")
(metric,) = [each for each in load_baseline(write_baseline(made, folder / "baselines")).metrics.values()
             if each.name == "ttlt_ms"]
print(metric.key, metric.unit, metric.kind, metric.better, metric.starts[0])
"""


def test_adding_a_metric_touches_three_files(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    root = tmp_path / "copy"
    for name in ("fixtures", "perf_tests", "baselines"):
        shutil.copytree(pytestconfig.rootpath / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(pytestconfig.rootpath / name, root)
    for name, (old, new) in STEPS.items():
        text = (root / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, name
        (root / name).write_text(text.replace(old, new), encoding="utf-8")
    assert len(STEPS) <= 3
    guide = (pytestconfig.rootpath / "docs" / "extending.md").read_text(encoding="utf-8")
    section = guide.partition("## A metric\n")[2].partition("\n## ")[0]
    for name in STEPS:
        assert name in section, name

    plugin = root / "fixtures" / "sglang_cpu"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = f"{root}{os.pathsep}{plugin}"

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=240)
        return done.returncode, done.stdout + done.stderr

    assert run("-c", MEASURED, str(tmp_path)) == (0, "single_stream/ttlt_ms ms timing lower 700.0\n")
    code, text = run(
        "-m", "pytest", "-p", "no:cacheprovider", "-m", "perf", "--box=cpu", "--deployment=baseline",
        f"--from-results={tmp_path / 'new'}", f"--baselines={tmp_path / 'baselines'}", "perf_tests/test_latency.py",
        "-k", "last_token",
    )  # fmt: skip
    assert code == 1, text
    row = next(line for line in text.splitlines() if "single_stream/ttlt_ms" in line)
    assert "regression" in row
