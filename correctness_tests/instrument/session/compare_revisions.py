"""The same recorded runs judged by two checkouts of the suite: every verdict of both, and where they differ.

    python correctness_tests/instrument/session/compare_revisions.py OLD NEW [FOLDER ...]

OLD and NEW are checkouts; the runs are written by OLD's own writers, FOLDERs are results folders of real runs besides.
Prints a Markdown table with a line for each verdict that differs, and how many do not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

SLOWER = (-0.3, -0.08, -0.05, -0.03, 0.0, 0.03, 0.05, 0.08, 0.12, 0.3)
Verdicts = dict[tuple[str, str, str], str]
"""By case, deployment and metric."""


def write_cases(directory: Path) -> None:
    """Write every case below `directory`, by the writers of the checkout that is first on the path."""
    import campaign_cases
    import report_cases
    from campaign_cases import write_failed, write_tried
    from report_cases import baseline_of

    from fixtures.gate.baselines import write_baseline
    from fixtures.records.store import write_record

    def records_of(*given: Any, **more: Any) -> list[Any]:
        records = report_cases.records_of(*given, **more)
        for record in records:
            record.passes = {}
            served = next(iter(record.workloads.values()))
            record.workloads = {name: {**served, "name": name} for name in digests}
        return records

    digests = dict.fromkeys(("single_stream", "concurrency_8", "concurrency_32"), "w")
    for environment in (report_cases.ENVIRONMENT, campaign_cases.ENVIRONMENT):  # what every measured start has
        environment.update({f"workload {name}": digest for name, digest in digests.items()})
    report_cases.ENVIRONMENT["server.max_total_tokens"] = 20000
    accepted = replace(baseline_of(records_of("eagle3", 10, seed=1, name="b")), workloads=digests)
    write_baseline(accepted, directory / "baselines")
    for slower in SLOWER:
        for count, fresh in ((1, 0), (5, 0), (10, 0), (5, 5), (10, 5)):
            folder = directory / f"cpu slower {slower:+.0%}, {count}+{fresh} starts"
            records = records_of("eagle3", count, seed=2, slower=slower)
            for record in records_of("eagle3", fresh, seed=3, slower=slower, name="f"):
                record.role = "stage2"
                records.append(record)
            for record in records:
                write_record(record, folder)
    failed = records_of("eagle3", 5, seed=4)
    failed[2].status = "measurement failed"
    failed[2].failure = {"cause": "killed", "message": "the server was killed", "lines": ["last words"]}
    moved = records_of("eagle3", 5, seed=5)
    lost = records_of("eagle3", 5, seed=6)
    for record in moved:
        record.environment = {**record.environment, "torch": "2.9.1"}
    lost[1].metrics = [metric for metric in lost[1].metrics if metric.name != "ttft_ms"]
    for name, records in (("failed start", failed), ("other torch", moved), ("lost metric", lost)):
        for record in records:
            write_record(record, directory / f"cpu {name}")
    for name, rate in (("pcie_ipc", 99.0), ("pcie_ipc", 89.5), ("nccl_ll", 84.0)):
        write_tried(directory / f"gpu {name} at {rate}", name, rate)
    write_failed(directory / "gpu pcie_ipc fails", "pcie_ipc", "unsupported")


def judge(checkout: Path, folder: Path, baselines: Path | None) -> Iterator[tuple[str, str, str]]:
    """Deployment, metric and verdict of each judgement that a checkout makes of a folder; then its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "run.jsonl"
        box = "pcie_blackwell" if folder.name.startswith("gpu ") else "cpu"
        given = [f"--box={box}", f"--from-results={folder}", f"--jsonl={lines}"]
        if baselines is not None:
            given.append(f"--baselines={baselines}")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", "perf", *given],
            cwd=checkout, capture_output=True, text=True, timeout=600, env=_environment(checkout),
        )
        yield "", "exit code", str(done.returncode)
        for line in lines.read_text().splitlines() if lines.exists() else ():
            found = json.loads(line)
            if found["schema"].startswith("judgement/"):
                yield found["deployment"], found["key"], found["verdict"]
        for line in done.stdout.splitlines():  # the campaign's outcomes stand in the summary alone
            if line.lstrip().startswith(("pcie_ipc", "nccl", "symm")) and ":" in line:
                yield "", f"outcome {line.split(':')[0].strip()}", line.strip()


def verdicts(checkout: Path, directory: Path, real: list[Path]) -> Verdicts:
    """Every verdict of a checkout on the written cases and the real runs."""
    found: Verdicts = {}
    cases = sorted(each for each in directory.iterdir() if each.name != "baselines")
    for folder, baselines in [*((each, directory / "baselines") for each in cases), *((each, None) for each in real)]:
        for deployment, metric, verdict in judge(checkout, folder, baselines):
            found[folder.name, deployment, metric] = verdict
    return found


def _environment(checkout: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    helpers = {str(each.parent) for each in (checkout / "correctness_tests").rglob("*_cases.py")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(checkout), *sorted(helpers)])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    old, new = (each.resolve() for each in given.checkouts)
    with tempfile.TemporaryDirectory() as scratch:
        code = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import compare_revisions as c; " + (
            f"from pathlib import Path; c.write_cases(Path({scratch!r}))"
        )
        subprocess.run([sys.executable, "-c", code], cwd=old, check=True, env=_environment(old), timeout=300)
        real = [each.resolve() for each in given.folders]
        before, after = (verdicts(each, Path(scratch), real) for each in (old, new))
    different = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    print(f"{len(before)} verdicts before, {len(after)} after, {len(different)} differ.\n")
    print("| run | deployment | metric | before | after |\n|---|---|---|---|---|")
    for key in sorted(different):
        print(f"| {' | '.join(key)} | {before.get(key, '-')} | {after.get(key, '-')} |")


if __name__ == "__main__":
    main()
