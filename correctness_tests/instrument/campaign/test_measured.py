"""Do a step's parts come out of the records as they were put in, and is a record without them refused?"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.campaign.steps import prediction, step_of, step_times
from fixtures.errors import MeasurementFailed
from fixtures.profile.figures import Profile, RankFigures
from fixtures.records.metric import Metric
from fixtures.records.passes import PassRow, PassSummary
from fixtures.records.start import StartRecord

WORKLOAD = "single_stream"


def row(role: str, mode: str, count: int, seconds: float | None, **more: Any) -> PassRow:
    return PassRow(role, mode, count, seconds, **({"all_reduces": {0: count}} | more))


def record(rate: float, rows: list[PassRow], accept: float | None = None) -> StartRecord:
    made = StartRecord("start", "run", "cpu", "cpu", "eagle3", "stage1", 0, "2026-07-01T00:00:00.000Z")
    made.passes = {WORKLOAD: PassSummary(tuple(rows))}
    made.metrics = [Metric("decode_tok_s", rate, "tok/s", "timing", "higher", WORKLOAD, 12)]
    if accept is not None:
        made.metrics.append(Metric("accept_length", accept, "tokens/pass", "counted", "higher", WORKLOAD, 12))
    return made


def plain(pass_s: float = 3e-3, rest_s: float = 1e-3, **more: Any) -> StartRecord:
    rows = [row("target", "extend", 14, 20e-3), row("target", "decode", 1000, pass_s, **more)]
    return record(1 / (pass_s + rest_s), rows)


def speculative(
    verify_s: float = 4e-3, draft_s: float = 0.5e-3, rest_s: float = 1e-3, accept: float = 3.0, **more: Any
) -> StartRecord:
    """A step: one verify pass, two draft passes and one pass that extends the draft, each of `draft_s`."""
    rows = [
        row("target", "extend", 14, 20e-3),
        row("target", "target_verify", 400, verify_s, **more),
        row("draft", "extend", 14, 5e-3),
        row("draft", "decode", 800, draft_s),
        row("draft", "draft_extend_v2", 400, draft_s),
    ]
    return record(accept / (verify_s + 3 * draft_s + rest_s), rows, accept)


times = st.floats(1e-5, 0.1)


@settings(deadline=None)
@given(times, times, times, st.floats(1, 4))
def test_parts_come_out_as_they_went_in(verify: float, draft: float, rest: float, accept: float) -> None:
    step = step_of(speculative(verify, draft, rest, accept), WORKLOAD)
    assert step.target_s == pytest.approx(verify)
    assert step.draft_s == pytest.approx(3 * draft), "prefill of the draft is no part of a step"
    assert step.rest_s == pytest.approx(rest, abs=1e-9)
    assert step.accept_length == accept


def test_attribution_from_a_record() -> None:
    (step,), _ = step_times([speculative(4e-3, 0.5e-3, 0.5e-3, all_reduces={12: 400}, all_reduce_share=0.25)])
    found = step.shares
    assert found is not None
    assert found.communication == pytest.approx(1 / 6)
    assert found.compute == pytest.approx(3 / 6)
    assert found.draft == pytest.approx(1.5 / 6)
    assert found.rest == pytest.approx(0.5 / 6)


def test_all_reduces_that_are_not_timed_are_not_zero() -> None:
    (graph,), _ = step_times([plain(all_reduces={122: 1000}, all_reduce_share=None)])
    assert not graph.timed
    assert graph.ms("communication") is None
    (alone,), _ = step_times([plain()])
    assert alone.timed
    assert alone.ms("communication") == 0


def test_a_profile_says_what_graphs_hide() -> None:
    """All-reduces of a graph are not timed: their share is that of the pass that was profiled, in one start of two."""
    first, second = (plain(all_reduces={122: 1000}, all_reduce_share=None) for _ in range(2))
    rank = RankFigures(0, 4000.0, 3000.0, 2000.0, 1000.0, 100.0, {})
    first.profile = Profile("DECODE", 1, 8, 1, True, {"all-reduce": 122}, {}, (), (rank,), {}, ())
    served: Any = {"name": WORKLOAD, "concurrency": 1, "requests": [], "wall_s": 1.0, "warm_up_requests": 0}
    for each in (first, second):
        each.workloads = {WORKLOAD: served, "later": {**served, "name": "later"}}
        each.passes["later"] = each.passes[WORKLOAD]
        each.metrics.append(Metric("decode_tok_s", 250.0, "tok/s", "timing", "higher", "later", 12))
    step, later = step_times([second, first])[0]
    assert step.shares is not None
    assert step.shares.communication == pytest.approx(0.5 * 3 / 4), "what nothing else runs beside, of the step"
    assert str(step).endswith(
        "a profiled pass: communication 75%, 50% with nothing beside it, 25% waiting for the slowest rank"
    )
    assert not later.timed, "the request that was profiled is one of the first workload"
    assert "is not known" in str(later)


def test_the_ratio_is_predicted_without_the_speculative_server_s_rate() -> None:
    ratio = prediction([plain()], [speculative()]).predicted
    assert ratio == pytest.approx(3.0 * 4e-3 / 6.5e-3)
    slow = speculative(rest_s=9e-3)
    assert prediction([plain()], [slow]).predicted == pytest.approx(ratio)


def test_a_start_that_is_out_of_line_does_not_move_the_parts() -> None:
    starts = [plain(), plain(3e-3), plain(30e-3)]
    alone = prediction([plain()], [speculative()]).predicted
    assert prediction(starts, [speculative()]).predicted == pytest.approx(alone)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (record(100.0, []), "no timed target pass"),
        (record(100.0, [row("target", "extend", 14, 20e-3)]), "no timed target pass"),
        (record(100.0, [row("target", "decode", 14, None)]), "no timed target pass"),
        (record(math.nan, [row("target", "decode", 14, 1e-3)]), "decode_tok_s = nan"),
        (record(100.0, [row("target", "target_verify", 14, 1e-3)]), "accept_length = None"),
        (record(100.0, [row("target", "target_verify", 14, 1e-3)], 3.0), "nothing drafted"),
    ],
)
def test_a_record_without_the_parts_is_refused(made: StartRecord, said: str) -> None:
    with pytest.raises(MeasurementFailed, match=said):
        step_of(made, WORKLOAD)


def test_a_prediction_needs_both_servers() -> None:
    with pytest.raises(MeasurementFailed, match="one with it"):
        prediction([plain()], [])
