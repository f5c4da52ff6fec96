"""What a pass holds is exact on real servers, and a change of it is a verdict after one start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fixtures.deployments import load_box
from fixtures.deployments.stacks import load_stacks
from fixtures.gate.decide import decide
from fixtures.gate.inside import judge_kernels
from fixtures.profile.figures import Profile
from fixtures.records.start import StartRecord
from fixtures.serving import profiling
from fixtures.serving.workloads import load_workload
from fixtures.session.against import candidate_side
from fixtures.session.measure_start import Subject, measure_start

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(0)]
PASSES, STARTS = 20, 5
Start = Callable[..., StartRecord]

PLANTED = (
    ("extra_copy", "baseline", "cop"),
    ("norm_dropped", "baseline", "-1 norm"),
    ("extra_cast", "baseline", "cop"),
    ("split_all_reduce", "tp2", "+1 all-reduce"),
)
"""A fault, the deployment in which it is planted, what its verdict says."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """`start(deployment, fault)`: one start under a short workload, with `PASSES` passes in its profile."""
    monkeypatch.setattr("fixtures.session.profiling.take_profile", partial(profiling.take_profile, passes=PASSES))
    workload = replace(load_workload("single_stream", "cpu"), requests=4, warm_up_requests=2)
    count = iter(range(10**6))

    def one(name: str, fault: str = "") -> StartRecord:
        deployment = load_box("cpu").deployments[name]
        planted = {"SGLANG_CPU_FAULT": fault} if fault else {}
        deployment = replace(deployment, environment={**deployment.environment, **planted})
        subject = Subject(candidate_side(deployment, load_stacks()["cpu"]), (workload,), "r", profiled=True)
        record = measure_start(subject, "stage1", next(count), tmp_path, lambda step: None)
        assert record.status == "ok", record.failure
        return record

    return one


def profile(record: StartRecord) -> Profile:
    assert record.profile is not None, record.profile_note
    return record.profile


@pytest.mark.parametrize("name", ["baseline", "eagle3", "tp2", "tp2_eagle3"])
def test_a_pass_holds_the_same_in_every_pass_of_every_start(start: Start, name: str) -> None:
    """All passes of a profile alike, and those of five starts."""
    found = [profile(start(name)) for _ in range(STARTS)]
    for each in found:
        assert each.exact, each.notes
        assert each.passes == PASSES
    counts = [{kernel.name: kernel.count for kernel in each.kernels} for each in found]
    assert counts == counts[:1] * STARTS


@pytest.mark.parametrize(("fault", "name", "says"), PLANTED)
def test_a_planted_change_is_a_verdict_after_one_start(
    start: Start, fault: str, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exact by the profile of one start, while the decode rate of five such starts tells nothing."""
    clean = [start(name) for _ in range(STARTS)]
    changed = [start(name, fault) for _ in range(STARTS)]
    assert changed[0].faults == (fault,)
    found = judge_kernels(changed[:1], profile(clean[0]))
    rate = [[record.metric("single_stream/decode_tok_s") for record in side] for side in (clean, changed)]
    values = [[each.value for each in side if each is not None] for side in rate]
    metric = rate[0][0]
    assert metric is not None
    # the gate wants ten starts of a baseline; each of the five stands twice, which makes it only more sensitive
    timing = decide(metric, values[0] * 2, values[1], share=0.01)
    with capsys.disabled():
        slower = math.prod(values[0]) ** (1 / STARTS) / math.prod(values[1]) ** (1 / STARTS) - 1
        print(f"\n{fault:17} {name:9} {found.verdict}: {found.reason}")
        print(f"{'':27} decode_tok_s of {STARTS} starts: {timing.verdict} ({slower:+.1%} slower)")
    assert found.verdict == "regression"
    assert says in found.reason
    assert timing.verdict != "regression"
    assert judge_kernels(clean[1:], profile(clean[0])).verdict == "no change"


def test_a_late_rank_shows_as_waiting_on_the_other(start: Start) -> None:
    """The last rank sleeps before each all-reduce: the first one waits, the last one does not."""
    clean, late = profile(start("tp2")), profile(start("tp2", "late_rank:5"))
    waits = [each.waiting_us for each in late.ranks]
    assert all(each is not None for each in waits)
    first, last = (float(each or 0) for each in waits)
    added = 5e3 * late.counts["all-reduce"]
    assert first > 0.5 * added
    assert last < 0.2 * first
    assert late.counts == clean.counts
