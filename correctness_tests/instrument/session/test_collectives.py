"""A machine whose collectives hang or sum wrongly is told before a server of several ranks is started."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from correctness_tests.allreduce.all_reduce_faults import planted
from fixtures.allreduce import ranks as module
from fixtures.deployments import load_box
from fixtures.errors import MeasurementFailed
from fixtures.session import collectives
from fixtures.session.against import Side
from fixtures.session.measure_start import Subject, measure_start

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def asked_afresh():
    collectives._problem.cache_clear()
    yield
    collectives._problem.cache_clear()


def test_collectives_that_work_let_servers_start():
    collectives.require_collectives(1, {})
    assert collectives._problem.cache_info().misses == 0, "one rank has no collectives"
    collectives.require_collectives(2, {})
    collectives.require_collectives(2, {})
    assert collectives._problem.cache_info().misses == 1, "asked once"


@pytest.mark.parametrize(
    ("fault", "cause"), [("dropped rank", "wrong all-reduce"), ("rank hangs", "hang")], ids=["wrong", "hang"]
)
def test_collectives_that_fail_are_a_failed_measurement_without_a_server(monkeypatch, tmp_path, fault, cause):
    monkeypatch.setattr(module.RankGroup, "run", _with_short_limit(module.RankGroup.run))
    monkeypatch.setattr(collectives, "preflight", partial(module.preflight, fault=planted(fault)))
    side = Side("tp2", load_box("cpu").deployment("tp2"), "cpu", "0.5.23", ("no such program",))
    record = measure_start(Subject(side, (), "r"), "stage1", 0, tmp_path, lambda _step: None)
    assert record.status == "measurement failed"
    assert record.failure["cause"] == cause
    assert "2 ranks" in record.failure["message"] or "world size 2" in record.failure["message"]
    assert not list(tmp_path.glob("*/server.log"))
    with pytest.raises(MeasurementFailed):
        collectives.require_collectives(2, {})


def test_each_environment_that_reaches_the_collectives_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(collectives, "preflight", lambda ranks, device, **told: asked.append(told["environment"]))
    for environment in ({}, {"NCCL_ALGO": "allreduce:ring"}, {"NCCL_ALGO": "allreduce:tree"}, {"HF_HUB_OFFLINE": "1"}):
        collectives.require_collectives(2, environment)
        collectives.require_collectives(2, environment | {"NCCL_DEBUG": "INFO"})
    assert asked == [{}, {"NCCL_ALGO": "allreduce:ring"}, {"NCCL_ALGO": "allreduce:tree"}]


def test_the_ranks_have_the_environment_that_is_asked_about():
    with module.RankGroup(module.BACKENDS["gloo"], 2, environment={"NCCL_ALGO": "allreduce:ring"}) as group:
        seen = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in group.pids]
    assert all(b"NCCL_ALGO=allreduce:ring" in each for each in seen)


def test_what_is_slow_once_is_asked_once_more_and_fails_no_start(monkeypatch, caplog):
    answers = [MeasurementFailed("nccl at world size 2: no answer within 90 s", "hang"), None]
    limits = []

    def ask(ranks, device, *, timeout_s=collectives.PREFLIGHT_S, environment):
        limits.append(timeout_s)
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(collectives, "preflight", ask)
    for _ in "123":
        collectives.require_collectives(2, {"NCCL_ALGO": "x"})
    assert limits == [90.0, 180.0]
    assert "no answer within 90 s with NCCL_ALGO=x; asked once more, for 180 s" in caplog.text


def _with_short_limit(run):
    """Starting takes most of the limit, and a loaded machine all of a short one."""
    return lambda group, cases, *, fault=None, timeout_s=0.0: run(group, cases, fault=fault, timeout_s=2)
