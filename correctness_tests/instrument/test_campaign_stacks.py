"""Two stacks side by side from records: is every difference listed, every metric judged, nothing invented?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.campaign.approach import RecordedOutcome
from fixtures.campaign.compare_stacks import Side, StackComparison, compare_stacks, side
from fixtures.campaign.compare_stacks_text import render
from fixtures.campaign.loading import load_approaches
from fixtures.campaign.outcomes import Outcome
from fixtures.campaign.stack_judge import gate
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord

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
) -> list[StartRecord]:
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        record = StartRecord(
            id=f"{stack}-{deployment}-{index}",
            run="r",
            box="pcie_blackwell",
            stack=stack,
            deployment=deployment,
            role="stage1",
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
    return compare_stacks(side("cu128", old + new), side("cu130", old + new), approaches, gate(2))


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
    found = compare_stacks(side("cu128", old), side("cu130", new), load_approaches(), gate(2))
    assert [each.key for each in found.regressions] == ["single_stream/all_reduces_per_pass"]
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
    assert [each.approach for each in found.unblocks] == ["flashinfer_fusion"]
    assert [each.approach for each in found.breaks] == ["decode_graph_128"]
    said = render(found).split("What cu130 changes")[1]
    assert "unblocks flashinfer_fusion: unsupported -> improves" in said
    assert "breaks decode_graph_128: improves -> no effect" in said
    assert "pcie_ipc" in said.split("not known yet")[1]
    assert "torch_symmetric_memory" not in said


def test_what_was_not_tried_is_neither_unblocked_nor_broken() -> None:
    found = compared(89.5)
    assert not found.unblocks
    assert not found.breaks
    assert len(found.unknown) == len(found.outcomes) == len(load_approaches())


def test_failed_and_discarded_starts_are_no_evidence() -> None:
    failed = starts("cu130", 1.0, environment={"cuda": "wrong"}, count=3)
    for record in failed:
        record.status = "measurement failed"
    discarded = starts("cu130", 1.0, environment={"cuda": "wrong"}, count=1)
    discarded[0].discarded = "first start after an install"
    found = compared(89.5, extra=failed + discarded)
    new = found.new.samples["baseline_bs128", "single_stream/decode_tok_s"]
    assert len(new.values) == 10
    assert min(new.values) > 50
    assert "wrong" not in render(found)
    assert "3 starts of baseline_bs128 on cu130 were no evidence" in render(found)


def test_two_empty_sides_say_so() -> None:
    empty = Side("cu128", {}, {}, {}), Side("cu130", {}, {}, {})
    text = render(compare_stacks(*empty, load_approaches(), gate(1)))
    assert "no start is on record" in text
    assert "none is on record on either stack" in text
