"""Evidence of the start is found in a log of any length, and reading one takes little memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from serving_cases import RELEASE, deployment

from fixtures.deployments.deployment import Evidence
from fixtures.errors import MeasurementFailed
from fixtures.serving.launch import LINE_LIMIT, Guarded, Mark
from fixtures.serving.processes import ProcessId
from fixtures.serving.server import Server, require_active, require_plugins

NCCL = {"nccl_algorithm": Evidence(active=("NCCL_ALGO set by environment to",))}
NOISE = "[2026-01-01 12:00:00 TP0] AllReduce: 43008 Bytes -> Algo RING proto LL\n"
LONG = 5 << 20
"""Bytes of noise: more than the end of a log that is read for the cause of a failure."""


def server(tmp_path: Path, first: str, last: str = "") -> Server:
    """A server (this process) with a long log between two lines."""
    log = tmp_path / "server.log"
    log.write_text(f"{first}\n{NOISE * (LONG // len(NOISE))}{last}\n")
    me = ProcessId.own()
    guarded = Guarded(me, me, Mark.new(me), tmp_path / "status", log)
    return Server("arm", 1, RELEASE, guarded, 1.0, tmp_path, (), {}, {})


@pytest.mark.parametrize("early", [True, False], ids=["early", "late"])
def test_a_path_is_proved_by_a_line_anywhere_in_the_log(tmp_path: Path, early: bool) -> None:
    lines = ("host:1:1 [0] NCCL INFO NCCL_ALGO set by environment to allreduce:ring", "ready")
    started = server(tmp_path, *(lines if early else reversed(lines)))
    require_active(deployment(tmp_path, "normal", evidence=NCCL), started)


def test_a_long_log_without_the_line_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="nccl_algorithm is silent"):
        require_active(deployment(tmp_path, "normal", evidence=NCCL), server(tmp_path, "started", "ready"))


def test_early_refusals_and_faults_are_seen(tmp_path: Path) -> None:
    refusing = server(tmp_path, "Failed to execute general plugin: sglang_cpu")
    with pytest.raises(MeasurementFailed, match="SGLang runs without it"):
        require_plugins(refusing)
    assert server(tmp_path, "FAULT ACTIVE one", "FAULT ACTIVE two").faults == ("one", "two")


def test_a_log_is_read_in_little_memory_also_without_line_ends(tmp_path: Path) -> None:
    started = server(tmp_path, "x" * LONG + "\rnew line")
    tracemalloc.start()
    longest, count = 0, 0
    for line in started.log_lines():
        longest, count = max(longest, len(line)), count + 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest == LINE_LIMIT
    assert count > LONG // LINE_LIMIT
    assert peak < 20 * LINE_LIMIT
    assert "new line" in started.log_lines(), "a progress bar's carriage return ends a line"


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    started = server(tmp_path, "")
    gone = replace(started.guarded, log=tmp_path / "none")
    assert list(gone.log_lines()) == []
