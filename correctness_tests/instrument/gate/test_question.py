"""The one loop that confirms an alarm, and what class each component of an environment is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fixtures.gate.paired import MeasuredPair
from fixtures.gate.question import Question, budget, settled
from fixtures.gate.spec import Judgement
from fixtures.records.components import class_of, differing
from fixtures.records.environment import fingerprint
from fixtures.records.start import StartRecord

ALARM = Judgement("w/x", "regression", "x", needs_confirmation=True, starts_wanted=5)
QUIET = Judgement("w/x", "no change", "x")


@pytest.mark.parametrize(
    ("first", "confirm", "given"), [(QUIET, None, 0), (ALARM, None, 5), (ALARM, 0, 0), (ALARM, 3, 3)]
)
def test_an_alarm_gets_the_fresh_starts_that_it_asks_for(first: Judgement, confirm: int | None, given: int):
    asked: list[int] = []

    def fresh(count: int) -> list[int]:
        asked.append(count)
        return list(range(count + 2))  # another metric had asked for more

    def ask(more: Sequence[int]) -> Judgement:
        assert len(more) in (0, given)
        return QUIET if more else first

    found, more = settled(ask, fresh, confirm)
    assert (asked, len(more)) == ([given] if given else [], given)
    assert found is (QUIET if given else first)


def test_an_alarm_that_nobody_can_confirm_stands():
    assert settled(lambda more: ALARM, lambda count: [], None) == (ALARM, ())


def test_what_it_is_compared_with_makes_no_other_question():
    asked = [Question("baseline", "w/ttft_ms"), Question("baseline", "w/ttft_ms", "other side")]
    shares = budget([*asked, Question("eagle3", "w/ttft_ms")])
    assert list(shares.shares.values()) == pytest.approx([0.005, 0.005])
    assert shares.share("baseline", "w/ttft_ms") == shares.shares[asked[1]]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_start_answers_every_question_alike(failing: int):
    """A start of its own, or either side of a pair."""
    made = [StartRecord(f"s{at}", "r", "cpu", "cpu", "d", "stage1", 0, "2026-01-01T00:00:00Z") for at in (0, 1)]
    made[failing].status, made[failing].failure = "measurement failed", {"message": "the server was killed"}
    alone = Question("d", "w/ttft_ms").answer(made, share=0.01)
    pair = Question("d", "w/ttft_ms", "other side").answer([MeasuredPair((made[0], made[1]), {}, ())], share=0.01)
    assert alone == pair
    assert (alone.verdict, alone.reason) == ("measurement failed", "the server was killed")


@pytest.mark.parametrize(
    ("component", "kind"),
    [
        ("driver", "machine"),
        ("kernel", "machine"),
        ("kernels", "stack"),
        ("torch", "stack"),
        ("sglang", "release"),
        ("server.tp_size", "setting"),
        ("draft model", "setting"),
        ("$NCCL_ALGO", "variable"),
        ("workload single_stream", "workload"),
        ("pcie_ipc tactics", "leftover"),
        ("a component that nobody has named", "stack"),
    ],
)
def test_each_component_has_its_class(component: str, kind: str):
    assert class_of(component) == kind
    here, there = {"machine": "a", component: "1"}, {"machine": "a", component: "2"}
    assert [each.component for each in differing(here, there)] == [component]
    assert differing(here, there, ignoring={class_of(component)}) == []


def test_every_component_of_this_machine_is_classed():
    kinds = {class_of(component) for component in fingerprint({"NCCL_ALGO": "Ring"})}
    assert {"machine", "stack", "release", "variable"} <= kinds


def test_only_a_metrics_own_workload_matters_to_it():
    here = {"workload a": "1", "workload b": "1"}
    there = {"workload a": "1", "workload b": "2"}
    assert differing(here, there, key="a/x") == []
    assert differing(here, there, key="kv_tokens") == []
    assert len(differing(here, there, key="b/x")) == len(differing(here, there)) == 1
