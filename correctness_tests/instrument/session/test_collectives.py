"""A machine whose collectives hang or sum wrongly is told before a server of several ranks is started."""

from __future__ import annotations

from functools import partial

import pytest

from correctness_tests.allreduce.all_reduce_faults import planted
from fixtures.allreduce import ranks as module
from fixtures.deployments import load_box
from fixtures.errors import MeasurementFailed
from fixtures.session import served
from fixtures.session.against import Side
from fixtures.session.measure_start import Subject, measure_start

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def asked_afresh():
    served._problem.cache_clear()
    yield
    served._problem.cache_clear()


def test_collectives_that_work_let_servers_start():
    served.require_collectives(1)
    assert served._problem.cache_info().misses == 0, "one rank has no collectives"
    served.require_collectives(2)
    served.require_collectives(2)
    assert served._problem.cache_info().misses == 1, "asked once"


@pytest.mark.parametrize(
    ("fault", "cause"), [("dropped rank", "wrong all-reduce"), ("rank hangs", "hang")], ids=["wrong", "hang"]
)
def test_collectives_that_fail_are_a_failed_measurement_without_a_server(monkeypatch, tmp_path, fault, cause):
    monkeypatch.setattr(module.RankGroup, "run", _with_short_limit(module.RankGroup.run))
    monkeypatch.setattr(served, "preflight", partial(module.preflight, fault=planted(fault)))
    side = Side("tp2", load_box("cpu").deployment("tp2"), "cpu", "0.5.23", ("no such program",))
    record = measure_start(Subject(side, (), "r"), "stage1", 0, tmp_path, lambda _step: None)
    assert record.status == "measurement failed"
    assert record.failure["cause"] == cause
    assert "2 ranks" in record.failure["message"] or "world size 2" in record.failure["message"]
    assert not list(tmp_path.glob("*/server.log"))
    with pytest.raises(MeasurementFailed):
        served.require_collectives(2)


def _with_short_limit(run):
    """Starting takes most of the limit, and a loaded machine all of a short one."""
    return lambda group, cases, *, fault=None, timeout_s=0.0: run(group, cases, fault=fault, timeout_s=2)
