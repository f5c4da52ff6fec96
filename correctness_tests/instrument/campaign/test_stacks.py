"""Two stacks side by side from records: is every difference listed, every metric judged, nothing invented?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.campaign.approach import RecordedOutcome
from fixtures.campaign.compare_stacks import (
    MetricChange,
    RecordedSide,
    Samples,
    StackComparison,
    compare_stacks,
    judge,
    side,
)
from fixtures.campaign.compare_stacks_text import render
from fixtures.campaign.loading import load_approaches
from fixtures.campaign.outcomes import Change, Outcome
from fixtures.gate.question import Budget, Question
from fixtures.gate.spec import POLICY, Starts
from fixtures.records.metric import Metric
from fixtures.records.start import Role, StartRecord

CU128 = {
    "cuda": "12.8.90",
    "torch": "2.9.1",
    "nccl": "2.27.5",
    "sglang": "0.5.10.post1",
    "gpu": "RTX PRO 6000",
}
CU130 = {
    "cuda": "13.0.3",
    "torch": "2.14.1",
    "nccl": "2.30.7",
    "sglang": "0.5.23",
    "gpu": "RTX PRO 6000",
    "nvrtc": "13",
}


def starts(
    stack: str,
    rate: float,
    *,
    environment: dict[str, str],
    count: int = 10,
    deployment: str = "baseline_bs128",
    all_reduces: float = 122,
    seed: int = 1,
    role: Role = "stage1",
) -> list[StartRecord]:
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        record = StartRecord(
            id=f"{stack}-{deployment}-{role}-{index}",
            run="r",
            box="pcie_blackwell",
            stack=stack,
            deployment=deployment,
            role=role,
            index=index,
            started_at="2026-07-01T00:00:00.000Z",
            environment=dict(environment),
        )
        value = rate * float(np.exp(random.normal(0, 0.003)))
        record.metrics = [
            Metric("decode_tok_s", value, "tok/s", "timing", "higher", "single_stream", 20),
            Metric("all_reduces_per_pass", all_reduces, "all-reduces", "exact", "same", "single_stream"),
        ]
        made.append(record)
    return made


def compared(
    rate: float, outcomes: dict[str, Outcome] | None = None, extra: list[StartRecord] | None = None
) -> StackComparison:
    old = starts("cu128", 89.5, environment=CU128)
    new = starts("cu130", rate, environment=CU130, seed=2) + (extra or [])
    approaches = load_approaches()
    for name, outcome in (outcomes or {}).items():
        both = {**approaches[name].outcomes, "cu130": RecordedOutcome(outcome)}
        approaches[name] = replace(approaches[name], outcomes=both)
    return compare_stacks(side("cu128", old + new), side("cu130", old + new), approaches, shares())


def test_every_differing_component_is_listed_and_no_other() -> None:
    found = compared(89.5)
    assert [each.component for each in found.differences] == ["cuda", "nccl", "nvrtc", "sglang", "torch"]
    assert found.same == 1
    nvrtc = found.differences[2]
    assert (nvrtc.old, nvrtc.new) == ((), ("13",))
    text = render(found)
    for component in CU130:
        assert (component in text.split("Approaches")[0]) is (component != "gpu")
    assert "no change above is that of one alone" in text


def test_a_component_that_differs_between_starts_of_one_stack_shows_all_its_values() -> None:
    extra = starts("cu130", 89.5, environment={**CU130, "cuda": "13.1"}, count=1, deployment="other")
    cuda = next(each for each in compared(89.5, extra=extra).differences if each.component == "cuda")
    assert cuda.new == ("13.0.3", "13.1")


@pytest.mark.parametrize(("rate", "verdict"), [(80.0, "regression"), (100.0, "improvement"), (89.5, "no change")])
def test_every_metric_has_the_verdict_of_the_gate(rate: float, verdict: str) -> None:
    found = compared(rate, extra=starts("cu130", rate, environment=CU130, count=5, seed=9, deployment="new"))
    by_key = {(each.deployment, each.key): each for each in found.metrics}
    change = by_key["baseline_bs128", "single_stream/decode_tok_s"]
    assert change.judgement is not None
    assert change.verdict == verdict
    assert change.judgement.ratio == pytest.approx(rate / 89.5, rel=0.01)
    assert by_key["baseline_bs128", "single_stream/all_reduces_per_pass"].verdict == "no change"
    assert by_key["new", "single_stream/decode_tok_s"].verdict == "only on the new stack"
    text = render(found)
    assert f"{change.judgement.ratio:.3f}" in text
    summary = f"  {verdict}: baseline_bs128 single_stream/decode_tok_s"
    assert (summary in text) is (verdict != "no change")


def test_another_number_of_all_reduces_is_a_regression_at_any_speed() -> None:
    new = starts("cu130", 120, environment=CU130, all_reduces=123)
    old = starts("cu128", 89.5, environment=CU128)
    found = compare_stacks(side("cu128", old), side("cu130", new), load_approaches(), shares())
    assert [each.key for each in found.judged("regression")] == ["single_stream/all_reduces_per_pass"]
    assert "regression: baseline_bs128 single_stream/all_reduces_per_pass" in render(found)


def test_what_the_new_stack_unblocks_and_breaks() -> None:
    found = compared(
        89.5,
        {
            "flashinfer_fusion": Outcome.IMPROVES,
            "decode_graph_128": Outcome.NO_EFFECT,
            "torch_symmetric_memory": Outcome.UNSUPPORTED,
        },
    )
    assert [each.approach for each in found.changed(Change.UNBLOCKED)] == ["flashinfer_fusion"]
    assert [each.approach for each in found.changed(Change.WORSE)] == ["decode_graph_128"]
    said = render(found).split("What cu130 changes")[1]
    assert "unblocks flashinfer_fusion: unsupported -> improves" in said
    assert "breaks decode_graph_128: improves -> no effect" in said
    assert "pcie_ipc" in said.split("not known yet")[1]
    assert "torch_symmetric_memory" not in said


def test_what_was_not_tried_is_neither_unblocked_nor_broken() -> None:
    found = compared(89.5)
    assert not found.changed(Change.UNBLOCKED, Change.WORSE)
    assert len(found.changed(Change.FIRST, Change.UNTESTED)) == len(found.outcomes) == len(load_approaches())


def test_failed_and_discarded_starts_are_no_evidence() -> None:
    failed = starts("cu130", 1.0, environment={"cuda": "wrong"}, count=3)
    for record in failed:
        record.status = "measurement failed"
    discarded = starts("cu130", 1.0, environment={"cuda": "wrong"}, count=1)
    discarded[0].discarded = "first start after an install"
    found = compared(89.5, extra=failed + discarded)
    new = found.new.samples["baseline_bs128", "single_stream/decode_tok_s"]
    assert len(new.whole.values) == 10
    assert min(new.whole.values) > 50
    assert "wrong" not in render(found)
    assert "3 starts of baseline_bs128 on cu130 were no evidence" in render(found)


def test_two_empty_sides_say_so() -> None:
    empty = RecordedSide("cu128", {}, {}, {}), RecordedSide("cu130", {}, {}, {})
    text = render(compare_stacks(*empty, load_approaches(), shares()))
    assert "no start is on record" in text
    assert "none is on record on either stack" in text


RATE = ("baseline_bs128", "single_stream/decode_tok_s")


def shares(share: float = 0.005) -> Budget:
    """A budget that gives every metric of `starts` the same share."""
    return Budget({Question(*RATE): share})


def judged(new: list[StartRecord], old: list[StartRecord] | None = None, share: float = 0.005) -> MetricChange:
    """The decode rate of the new stack, against ten starts at 89.5 tok/s unless others are given."""
    old = old or starts("cu128", 89.5, environment=CU128)
    found = compare_stacks(side("cu128", old), side("cu130", new), {}, shares(share))
    return next(each for each in found.metrics if (each.deployment, each.key) == RATE)


def new_starts(rate: float, count: int = 10, role: Role = "stage1") -> list[StartRecord]:
    return starts("cu130", rate, environment=CU130, count=count, seed=7, role=role)


def noisy_starts() -> list[StartRecord]:
    """Five that are 3.2 % slower with a CV of 2.4 %: enough for a suspicion (p of about 0.02), not for one look."""
    made = new_starts(89.5, 5)
    for record, rate in zip(made, (88.0, 84.0, 87.0, 89.0, 85.0), strict=True):
        record.metrics[0] = replace(record.metrics[0], value=rate)
    return made


def reason(change: MetricChange) -> str:
    assert change.judgement is not None
    return change.judgement.reason


@pytest.mark.parametrize(("share", "verdict"), [(-0.08, "regression"), (0.08, "improvement"), (0.01, "no change")])
@pytest.mark.parametrize("count", [5, 10])
def test_one_look_calls_what_nobody_can_confirm_any_more(share: float, verdict: str, count: int) -> None:
    found = judged(new_starts(89.5 * (1 + share), count))
    assert found.verdict == verdict
    if verdict != "no change":
        assert f"in one look at {count} starts" in reason(found)


def test_a_suspicion_that_one_look_cannot_settle_says_what_to_do() -> None:
    found = judged(noisy_starts())
    assert found.verdict == "too noisy to tell"
    assert "starts of one session cannot tell less than" in reason(found)


@pytest.mark.parametrize(
    ("fresh", "count", "verdict", "said"),
    [
        (89.5, 5, "no change", "stage 2 did not confirm"),
        (83.0, 5, "regression", "confirmed by 5 fresh starts"),
        (89.5, 3, "too noisy to tell", "its fresh starts do not show it"),
        (83.0, 3, "regression", "in one look at 5 starts"),
    ],
)
def test_confirming_starts_are_not_pooled_with_those_they_confirm(
    fresh: float, count: int, verdict: str, said: str
) -> None:
    found = judged([*new_starts(fresh, count, "stage2"), *new_starts(83.0, 5)])
    assert (found.verdict, said in reason(found)) == (verdict, True), reason(found)
    assert found.new is not None
    assert (len(found.new.whole.values), len(found.new.fresh)) == (5 + count, count)


def test_unchanged_stacks_raise_no_more_alarms_than_their_share() -> None:
    random = np.random.default_rng(11)
    alarms, draws = 0, 400
    metric = starts("cu128", 89.5, environment=CU128, count=1)[0].metrics[0]
    for _ in range(draws):
        old, first, fresh = (tuple(np.exp(random.normal(0, 0.03, count))) for count in (10, 5, 5))
        # the new side has fresh starts where its own run saw an alarm, which that of another baseline may be
        confirming = 5 if np.mean(first) < 0.99 else 0
        new = Samples(metric, Starts(first), Starts(fresh[:confirming]))
        alarms += judge(Samples(metric, Starts(old)), new, share=0.01).verdict == "regression"
    assert alarms <= POLICY.run_false_alarms * draws


def test_a_metric_that_could_not_be_judged_counts_and_is_named() -> None:
    old = starts("cu128", 89.5, environment=CU128, count=5)
    found = compare_stacks(side("cu128", old), side("cu130", new_starts(80.0)), {}, shares())
    assert [each.key for each in found.judged("measurement failed")] == ["single_stream/decode_tok_s"]
    assert found.worse
    text = render(found).split("What cu130 changes")[1]
    assert "measurement failed: baseline_bs128 single_stream/decode_tok_s: the baseline has 5 starts" in text
    assert "nothing" not in text


@pytest.mark.parametrize(("old_fails", "counts"), [(False, True), (True, False)])
def test_a_deployment_of_which_every_new_start_failed_counts_and_is_named(old_fails: bool, counts: bool) -> None:
    """Unless that is nothing new."""
    old, new = (starts(stack, 60.0, environment={}, count=3, deployment="eagle3") for stack in ("cu128", "cu130"))
    for record in [*new, *(old if old_fails else [])]:
        record.status = "measurement failed"
    both = [*old, *new, *starts("cu128", 89.5, environment={}), *new_starts(89.5)]
    found = compare_stacks(side("cu128", both), side("cu130", both), {}, shares())
    assert (found.lost, found.worse) == ((["eagle3"], True) if counts else ([], False))
    assert ("every start of eagle3 on cu130 failed" in render(found)) is counts


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (starts("cu130", 89.5, environment={}, seed=2), "nothing: every outcome and every metric is as it was"),
        (noisy_starts(), "too noisy to tell: baseline_bs128 single_stream/decode_tok_s"),
        (
            starts("cu130", 89.5, environment={}, deployment="other"),
            "only on the old stack: baseline_bs128 single_stream/all_reduces_per_pass and 1 more",
        ),
        ([], "only on the old stack: baseline_bs128"),
    ],
)
def test_nothing_changed_only_where_every_verdict_says_so(new: list[StartRecord], said: str) -> None:
    old = starts("cu128", 89.5, environment={})
    found = compare_stacks(side("cu128", old), side("cu130", new), {}, shares())
    text = render(found).split("What cu130 changes")[1]
    assert said in text
    assert ("nothing" in text) is said.startswith("nothing")
    empty = RecordedSide("cu128", {}, {}, {}), RecordedSide("cu130", {}, {}, {})
    assert "nothing: no metric is on record" in render(compare_stacks(*empty, {}, shares()))
