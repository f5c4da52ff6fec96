"""The table of planted faults: whole at the end of a run, however many workers planted them; one server, one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLANTING = """
import pytest
from dataclasses import asdict
from fixtures.speculation.fault_table import ROW, Row

@pytest.mark.parametrize("fault", ["mask_leak", "draft_dead", "stop_missed"])
def test_planted(fault, record_property):
    symptoms = () if fault == "stop_missed" else ("replay regret",)
    record_property(ROW, asdict(Row(fault, "plain", symptoms, 8.09, 3, 2.5, 0.25, False, True)))
    assert symptoms
"""
GROUPS = """
def pytest_collection_finish(session):
    for item in session.items:
        groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
        print("GROUPS", item.name, *groups)
"""


def run(root: Path, folder: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(root)])
    command = [sys.executable, "-m", "pytest", "-p", "fixtures.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--box=cpu", f"--results={folder / 'results'}", *arguments],
        cwd=root, env=environment, capture_output=True, text=True, timeout=240,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_every_planted_fault_has_its_line(
    workers: tuple[str, ...], pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    planting = tmp_path / "test_planting.py"
    planting.write_text(PLANTING)
    text = run(pytestconfig.rootpath, tmp_path, str(planting), *workers)
    _, _, table = text.partition("planted faults of speculation")
    lines = {line.split()[0]: line for line in table.splitlines() if "plain" in line}
    assert lines.keys() == {"mask_leak", "draft_dead", "stop_missed"}
    assert "fails: replay regret" in lines["mask_leak"]
    assert "passes" in lines["stop_missed"]
    assert "fails (25%)" in lines["mask_leak"]


def test_a_run_without_planted_faults_has_no_table(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    quiet = tmp_path / "test_quiet.py"
    quiet.write_text("def test_nothing():\n    pass\n")
    assert "planted faults" not in run(pytestconfig.rootpath, tmp_path, str(quiet))


def test_tests_that_switch_one_servers_faults_share_a_worker(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Two workers that switch faults of one server would judge each other's."""
    (tmp_path / "groups_told.py").write_text(GROUPS)
    where = "correctness_tests/speculation"
    text = run(pytestconfig.rootpath, tmp_path, where, "--collect-only", "-q", "-p", "groups_told")
    told = [line.split(maxsplit=1)[1].rsplit(maxsplit=1) for line in text.splitlines() if line.startswith("GROUPS ")]
    groups = dict(told)
    assert all(group.startswith("speculation") for group in groups.values()), groups
    switched = {
        group for name, group in groups.items()
        if name.startswith(("test_a_planted_fault_is_caught", "test_decaying")) and "aux_layers_first" not in name
    }
    parallel = {group for name, group in groups.items() if name.startswith("test_a_fault_of_an_all_reduce")}
    assert len(switched) == len(parallel) == 1
    others = {group for name, group in groups.items() if name.startswith("test_matrix[eagle3-")}
    assert switched.isdisjoint(others)
