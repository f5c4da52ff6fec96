"""From records to an approach's outcome: is each end of a try told apart, and is nothing claimed without evidence?"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from campaign_cases import BOX, STARTS, correctness, passes, start

from fixtures.campaign.loading import load_approaches
from fixtures.campaign.outcomes import Change, Outcome
from fixtures.campaign.summary import record_lines
from fixtures.campaign.trial import (
    Arm,
    ArmOutcome,
    active,
    arm_outcome,
    arms,
    judge_of,
    judge_speed,
    questions_of,
    tried,
)
from fixtures.deployments import load_box
from fixtures.errors import RecordError
from fixtures.gate.baselines import Baseline, BaselineMetric
from fixtures.gate.spec import Judgement
from fixtures.records.components import _BY_NAME
from fixtures.records.correctness import AllReduceChecked, ReplayChecked, read_correctness, write_correctness
from fixtures.records.environment import fingerprint
from fixtures.records.start import StartRecord

GPU = load_box(BOX)
EAGLE3 = Arm(GPU.deployment("eagle3"), GPU.deployment("baseline_bs128"))
PLAIN = Arm(GPU.deployment("pcie_ipc"), GPU.deployment("baseline_bs128"))


def verdict(word: str = "improvement", reason: str = "9 % faster") -> Judgement:
    return Judgement("single_stream/decode_tok_s", word, reason)  # type: ignore[arg-type]


def test_arms_are_compared_with_what_they_do_without() -> None:
    approaches = load_approaches()
    found = {name: [str(arm) for arm in arms(each, GPU)] for name, each in approaches.items()}
    assert found["pcie_ipc"] == ["pcie_ipc against baseline_bs128", "pcie_ipc_eagle3 against eagle3"]
    assert found["eagle3"] == ["eagle3 against baseline_bs128"]
    assert found["decode_graph_128"] == ["baseline_bs128 against baseline_bs512"]
    assert found["cuda_13"] == ["baseline_bs128 against cu128"]
    assert "nccl_tree_ll against baseline_bs128" in found["nccl_tuning"], "not against another arm of the approach"
    assert all(found.values())


def test_outputs_are_judged_by_a_plain_deployment_without_the_approach() -> None:
    for each in load_approaches().values():
        for arm in arms(each, GPU):
            judge = judge_of(arm, GPU)
            assert not judge.speculative
            assert judge.name not in each.deployments or arm.stack or each.against


def test_a_run_asks_about_each_approach_on_each_stack_once() -> None:
    approaches = load_approaches()
    found = list(questions_of(approaches, BOX, GPU, (), ()))
    assert sorted(map(str, found)) == sorted(f"{name}-{stack}" for name in approaches for stack in ("cu128", "cu130"))
    assert [str(each) for each in found if each.impossible] == ["cuda_13-cu128"]
    narrowed = {each.approach.id for each in questions_of(approaches, BOX, GPU, ("pcie_ipc", "eagle3"), ())}
    assert narrowed == {"pcie_ipc", "eagle3"}
    assert not list(questions_of(approaches, BOX, GPU, (), ("long_prompt",))), "without its metric there is no outcome"
    elsewhere = list(questions_of(approaches, BOX, load_box("cpu"), (), ()))
    assert len(elsewhere) == len(approaches)
    assert all("box pcie_blackwell" in str(each.impossible) for each in elsewhere)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("improvement", Outcome.IMPROVES), ("no change", Outcome.NO_EFFECT), ("regression", Outcome.SLOWER)],
)
def test_a_verdict_becomes_the_outcome_once_all_is_proved(word: str, outcome: Outcome) -> None:
    found = arm_outcome(EAGLE3, [start("eagle3", 0, 60.0)], correctness("eagle3"), verdict(word))
    assert found.outcome is outcome
    assert found.why == "9 % faster"


def failed(cause: str) -> StartRecord:
    failure = {"cause": cause, "message": f"eagle3: {cause}: said the log", "lines": ["said the log"]}
    return start("eagle3", 0, math.nan, status="measurement failed", failure=failure, metrics=[], passes={})


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        ("unsupported architecture", Outcome.UNSUPPORTED),
        ("path not active", Outcome.UNSUPPORTED),
        ("out of memory", Outcome.CRASHES),
        ("hang", Outcome.CRASHES),
    ],
)
def test_a_failed_start_is_its_cause_whatever_the_speed_of_another(cause: str, outcome: Outcome) -> None:
    found = arm_outcome(EAGLE3, [start("eagle3", 0, 200.0), failed(cause)], None, verdict())
    assert found.outcome is outcome
    assert "said the log" in found.why


@pytest.mark.parametrize("cause", ["port in use", "model missing", "configuration differs", "measurement"])
def test_a_cause_that_is_not_the_approach_s_is_no_outcome(cause: str) -> None:
    found = arm_outcome(EAGLE3, [failed(cause)], correctness("eagle3"), None)
    assert found.outcome is None
    assert "not tried" in found.why
    assert not tried("eagle3", "cu130", Outcome.SLOWER, [found]).undecided


def test_a_speed_without_the_path_is_unsupported() -> None:
    """The silent refusal: the server claims its draft, and every pass decodes one token."""
    silent = start("eagle3", 0, 200.0, passes=passes(verify=False))
    assert active(EAGLE3.candidate, [silent]) is False
    found = arm_outcome(EAGLE3, [silent], correctness("eagle3"), verdict())
    assert found.outcome is Outcome.UNSUPPORTED
    assert "no pass of it was counted" in found.why
    assert "faster" not in found.why


WRONG_SUM = (AllReduceChecked("nccl", 8, calls=120, wrong="rank 1: 7 of 7168 elements wrong"),)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"all_reduce": WRONG_SUM}, "nccl: rank 1"),
        ({"replay": ReplayChecked(2048, 3.0, 0.05, ("prompt-1: replay regret: 3.0",))}, "replay regret"),
        ({"all_reduce": WRONG_SUM, "replay": None, "not_checked": None}, "nccl: rank 1"),
    ],
)
def test_wrong_output_is_the_outcome_however_fast(changes: dict[str, object], said: str) -> None:
    found = arm_outcome(EAGLE3, [start("eagle3", 0, 200.0)], correctness("eagle3", **changes), verdict())
    assert found.outcome is Outcome.WRONG_OUTPUT
    assert said in found.why


UNAVAILABLE = (AllReduceChecked("sglang_custom_v2", 8, unavailable="needs NVLink"),)


@pytest.mark.parametrize(
    ("checked", "said"),
    [
        (None, "correctness was not checked"),
        (correctness("eagle3", replay=None, not_checked="the judge did not start"), "the judge did not start"),
        (correctness("eagle3", all_reduce=UNAVAILABLE), "needs NVLink"),
    ],
)
def test_a_speed_whose_output_was_not_checked_is_no_outcome(checked: object, said: str) -> None:
    found = arm_outcome(EAGLE3, [start("eagle3", 0, 200.0)], checked, verdict())  # type: ignore[arg-type]
    assert found.outcome is None
    assert said in found.why
    assert not tried("eagle3", "cu130", Outcome.SLOWER, [found]).undecided, "it fails, it is not skipped"


def test_what_more_starts_could_decide_is_undecided() -> None:
    for word in ("too noisy to tell", "no comparable baseline"):
        found = arm_outcome(EAGLE3, [start("eagle3", 0, 60.0)], correctness("eagle3"), verdict(word, "give more"))
        assert found.outcome is None
        assert "give more" in found.why
        assert tried("eagle3", "cu130", Outcome.SLOWER, [found]).undecided


def arm(outcome: Outcome | None, name: str = "pcie_ipc") -> ArmOutcome:
    return ArmOutcome(replace(PLAIN, candidate=GPU.deployment(name)), outcome, "why")


@pytest.mark.parametrize(
    ("outcomes", "now", "change"),
    [
        ([Outcome.UNSUPPORTED, Outcome.IMPROVES], Outcome.IMPROVES, Change.UNBLOCKED),
        ([Outcome.IMPROVES, None], Outcome.IMPROVES, Change.UNBLOCKED),
        ([Outcome.IMPROVES, Outcome.WRONG_OUTPUT], Outcome.WRONG_OUTPUT, Change.WORSE),
        ([Outcome.UNSUPPORTED, Outcome.NOT_TRIED], Outcome.UNSUPPORTED, Change.SAME),
        ([Outcome.NOT_TRIED, Outcome.NOT_TRIED], Outcome.NOT_TRIED, Change.UNTESTED),
    ],
)
def test_the_best_arm_is_the_approach_s_outcome(outcomes: list[Outcome | None], now: Outcome, change: Change) -> None:
    found = tried("pcie_ipc", "cu130", Outcome.UNSUPPORTED, list(map(arm, outcomes)))
    assert found.comparison is not None
    assert (found.comparison.now, found.comparison.change) == (now, change)


def test_an_arm_without_evidence_leaves_a_lesser_outcome_open() -> None:
    assert tried("pcie_ipc", "cu130", Outcome.IMPROVES, [arm(Outcome.SLOWER), arm(None)]).comparison is None


# --- The verdict on speed.


def starts(deployment: str, rate: float, count: int = STARTS, **changes: object) -> list[StartRecord]:
    return [start(deployment, index, rate * (1 + 0.001 * (index % 5)), **changes) for index in range(count)]


def baseline(rate: float, kind: str = "timing", environment: dict[str, object] | None = None) -> Baseline:
    key = "single_stream/decode_tok_s"
    values = (
        {"reported": (rate,)}
        if kind == "reported"
        else {
            "starts": tuple(rate * (1 + 0.001 * (index % 5)) for index in range(STARTS)),
            "ids": tuple(f"b{index}" for index in range(STARTS)),
        }
    )
    metric = BaselineMetric(key, "decode_tok_s", "single_stream", "tok/s", kind, "higher", **values)  # type: ignore[arg-type]
    known = start("baseline_bs128", 0, rate).environment if environment is None else environment
    when = "2026-07-01T00:00:00Z"
    return Baseline(BOX, "cu130", "baseline_bs128", "measured", "r", when, known, metrics={key: metric})


@pytest.mark.parametrize(("rate", "word"), [(120.0, "improvement"), (89.5, "no change"), (60.0, "regression")])
@pytest.mark.parametrize("source", ["starts", "baseline"])
def test_the_rate_is_judged_against_the_reference(rate: float, word: str, source: str) -> None:
    own = starts("baseline_bs128", 89.5) if source == "starts" else []
    known = baseline(89.5) if source == "baseline" else None
    first, fresh = starts("pcie_ipc", rate), starts("pcie_ipc", rate, role="stage2")
    assert judge_speed(PLAIN, first, fresh, own, known, share=0.01 / 3).verdict == word


def test_a_reported_figure_is_a_constant_with_its_margin() -> None:
    found = judge_speed(PLAIN, starts("pcie_ipc", 120), [], [], baseline(89.5, "reported", {}), share=0.01 / 3)
    assert found.verdict == "improvement"
    assert "reported 89.5" in found.reason


def test_too_few_starts_of_the_reference_are_no_baseline() -> None:
    found = judge_speed(PLAIN, starts("pcie_ipc", 120), [], starts("baseline_bs128", 89.5, 3), None, share=0.01 / 3)
    assert found.verdict == "no comparable baseline"
    assert "baseline_bs128 has 3 starts here and no baseline: give --starts 10" in found.reason


@pytest.mark.parametrize(("component", "comparable"), [("machine", False), ("torch", False), ("server.tp_size", True)])
def test_what_an_approach_sets_may_differ_and_nothing_else(component: str, comparable: bool) -> None:
    other = {**start("baseline_bs128", 0, 89.5).environment, component: "another"}
    found = judge_speed(PLAIN, starts("pcie_ipc", 89.5), [], [], baseline(89.5, environment=other), share=0.01)
    assert (found.verdict == "no change") is comparable
    assert (component in found.reason) is not comparable


def test_another_stack_shares_the_machine_only() -> None:
    across = Arm(GPU.deployment("baseline_bs128"), GPU.deployment("baseline_bs128"), "cu128")
    here = {**start("baseline_bs128", 0, 89.5).environment, "kernel": "6.8.0", "kernels": "0.4.10", "gpus": "eight"}
    other = {**here, "torch": "2.9.1", "sglang": "0.5.10.post1", "kernels": "0.3.21", "python": "3.12.1"}
    first = starts("baseline_bs128", 89.5, environment=here)
    assert judge_speed(across, first, [], [], baseline(89.5, environment=other), share=0.01).verdict == "no change"
    for component in ("machine", "kernel", "gpus"):
        moved = {**other, component: "b"}
        found = judge_speed(across, first, [], [], baseline(89.5, environment=moved), share=0.01)
        assert found.verdict == "no comparable baseline"
        assert component in found.reason


def test_what_is_the_machine_is_called_as_the_fingerprint_calls_it() -> None:
    """A component that is renamed must not silently leave the comparison of two stacks on one machine."""
    named = {component for component, kind in _BY_NAME.items() if kind == "machine"}
    assert {*fingerprint()} >= named - {"gpu count"}


def test_a_failed_confirming_start_fails_the_measurement() -> None:
    fresh = starts("pcie_ipc", 120, role="stage2")
    fresh[-1].status, fresh[-1].failure = "measurement failed", {"message": "pcie_ipc: out of memory"}
    found = judge_speed(PLAIN, starts("pcie_ipc", 120), fresh, starts("baseline_bs128", 89.5), None, share=0.01)
    assert (found.verdict, found.reason) == ("measurement failed", "pcie_ipc: out of memory")


# --- What is kept.


def test_a_correctness_record_is_read_back_as_written(tmp_path: Path) -> None:
    for made in (
        correctness("pcie_ipc"),
        correctness("eagle3", all_reduce=WRONG_SUM, replay=None, not_checked="no judge"),
    ):
        write_correctness(made, tmp_path)
        assert read_correctness(tmp_path, made.deployment) == made
    assert read_correctness(tmp_path, "mscclpp") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "{", "not JSON"),
        (lambda text: text.replace('"pcie_ipc"', '"eagle3"'), "not of pcie_ipc"),
        (lambda text: json.dumps(json.loads(text) | {"replay": {"positions": 0}}), "replay"),
        (lambda text: json.dumps(json.loads(text) | {"surprise": 1}), "surprise"),
    ],
)
def test_a_bad_correctness_record_is_one_line(tmp_path: Path, change: object, said: str) -> None:
    path = write_correctness(correctness("pcie_ipc"), tmp_path)
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    with pytest.raises(RecordError, match=said) as caught:
        read_correctness(tmp_path, "pcie_ipc")
    assert str(path) in str(caught.value)


def test_the_lines_to_record_are_accepted_by_the_file_they_are_for(tmp_path: Path) -> None:
    from fixtures.campaign.loading import FILE

    kept = start("pcie_ipc", 0, 120.0)
    found = tried("pcie_ipc", "cu130", Outcome.NOT_TRIED, [arm(Outcome.IMPROVES)])
    lines = record_lines(found, [start("eagle3", 0, 60.0), kept])
    assert f'record = "{kept.id}"' in lines
    text = FILE.read_text(encoding="utf-8")
    old = '[approaches.pcie_ipc.outcomes.cu130]\noutcome = "not tried"'
    assert old in text
    path = tmp_path / "approaches.toml"
    path.write_text(text.replace(old, "\n".join(lines)), encoding="utf-8")
    recorded = load_approaches(path)["pcie_ipc"].outcomes["cu130"]
    assert (recorded.outcome, recorded.provenance, recorded.record) == (Outcome.IMPROVES, "measured", kept.id)
    assert recorded.versions["sglang"] == "0.5.23"
    assert not record_lines(tried("pcie_ipc", "cu130", Outcome.IMPROVES, [arm(Outcome.IMPROVES)]), [kept])
