"""The table of planted faults: whole at the end of a run, however many workers planted them; one server, one worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

PLANTING = """
import pytest
from dataclasses import asdict
from planted_table import ROW, Row

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


@pytest.fixture
def run(suite: Callable[..., tuple[int, str]], pytestconfig: pytest.Config, tmp_path: Path) -> Callable[..., str]:
    """Run these tests with the suite's plugin and the table's; the text."""

    def ask(*arguments: str) -> str:
        beside = pytestconfig.rootpath / "correctness_tests" / "speculation"
        path = os.pathsep.join([str(tmp_path), str(pytestconfig.rootpath), str(beside)])
        given = ("-p", "fixtures.plugin", "-p", "planted_table", "--box=cpu", f"--results={tmp_path / 'results'}")
        code, text = suite(*given, *arguments, PYTHONPATH=path)
        assert code in (0, 1), text
        return text

    return ask


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_every_planted_fault_has_its_line(
    workers: tuple[str, ...], run: Callable[..., str], tmp_path: Path
) -> None:
    planting = tmp_path / "test_planting.py"
    planting.write_text(PLANTING)
    text = run(str(planting), *workers)
    _, _, table = text.partition("planted faults of speculation")
    lines = {line.split()[0]: line for line in table.splitlines() if "plain" in line}
    assert lines.keys() == {"mask_leak", "draft_dead", "stop_missed"}
    assert "fails: replay regret" in lines["mask_leak"]
    assert "passes" in lines["stop_missed"]
    assert "fails (25%)" in lines["mask_leak"]


def test_a_run_without_planted_faults_has_no_table(run: Callable[..., str], tmp_path: Path) -> None:
    quiet = tmp_path / "test_quiet.py"
    quiet.write_text("def test_nothing():\n    pass\n")
    assert "planted faults" not in run(str(quiet))


def test_tests_that_switch_one_servers_faults_share_a_worker(run: Callable[..., str], tmp_path: Path) -> None:
    """Two workers that switch faults of one server would judge each other's."""
    (tmp_path / "groups_told.py").write_text(GROUPS)
    where = "correctness_tests/speculation"
    text = run(where, "--collect-only", "-q", "-p", "groups_told")
    told = [line.split(maxsplit=1)[1].rsplit(maxsplit=1) for line in text.splitlines() if line.startswith("GROUPS ")]
    groups = dict(told)
    assert all(group.startswith("speculation") for group in groups.values()), groups
    switching = (
        "test_a_planted_fault_is_caught", "test_a_fault_of_sampled", "test_a_fault_of_one_situation", "test_decaying",
    )
    switched = {
        group for name, group in groups.items()
        if name.startswith(switching) and "aux_layers_first" not in name
    }
    parallel = {group for name, group in groups.items() if name.startswith("test_a_fault_of_an_all_reduce")}
    assert len(switched) == len(parallel) == 1
    others = {group for name, group in groups.items() if name.startswith("test_matrix[eagle3-")}
    assert switched.isdisjoint(others)
