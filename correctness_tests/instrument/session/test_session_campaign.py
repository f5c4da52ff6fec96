"""In what order a run tries an approach: sums, outputs, speed; and that a failure of one spares the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from campaign_cases import BOX, STARTS, start

from fixtures.campaign.loading import load_approaches
from fixtures.campaign.outcomes import Outcome
from fixtures.campaign.trial import Asked, by_itself, questions_of
from fixtures.deployments import load_box
from fixtures.deployments.stacks import stack
from fixtures.errors import ServerError
from fixtures.records.correctness import AllReduceChecked, ReplayChecked, read_correctness
from fixtures.records.start import StartRecord
from fixtures.session import campaign_servers as module
from fixtures.session import measurements
from fixtures.session.budget import budget_of
from fixtures.session.campaign_servers import campaign_of
from fixtures.session.measurements import Measurements, Plan

GPU = load_box(BOX)
RIGHT = ReplayChecked(2048, 0.01, 0.05)


class Bench:
    """A run whose starts are given, and checks that say what they are told to; `steps` is what was done, in order."""

    def __init__(self, folder: Path, rates: Mapping[str, float], starts: int) -> None:
        self.steps: list[str] = []
        self.box, self.stack, self.show = GPU, stack("cu130"), lambda subject, step: None
        self.options = SimpleNamespace(starts=starts, from_results=None, confirm_starts=STARTS)
        self.baselines = folder / "none"
        night = SimpleNamespace(between=lambda source, name, key, reference: None)
        self.judge = SimpleNamespace(night=night)
        self.source = SimpleNamespace(stage1=self.stage1, stage2=self.stage2)
        self._rates, self._folder = rates, folder
        self.budget = budget_of(GPU, "cu130", GPU.deployments)
        self.sums: dict[str, AllReduceChecked] = {}
        self.wrong: set[str] = set()
        self.unanswered: set[str] = set()

    @property
    def starts(self) -> int:
        return int(self.options.starts)

    def results(self) -> Path:
        return self._folder

    def stage1(self, deployment: Any) -> list[StartRecord]:
        self.steps.append(f"measure {deployment.name}")
        rate = self._rates[deployment.name]
        return [start(deployment.name, index, rate * (1 + 0.001 * (index % 5))) for index in range(STARTS)]

    def stage2(self, deployment: Any, count: int) -> list[StartRecord]:
        self.steps.append(f"confirm {deployment.name}")
        rate = self._rates[deployment.name]
        fresh = [start(deployment.name, index, rate, role="stage2") for index in range(count)]
        for index, record in enumerate(fresh):
            record.metrics[0] = start(deployment.name, 0, rate * (1 + 0.001 * (index % 5))).metrics[0]
        return fresh

    def checked_all(self, names: Sequence[str], deployment: Any) -> tuple[AllReduceChecked, ...]:
        self.steps.append(f"sum {deployment.name}")
        return tuple(self.sums.get(deployment.name, AllReduceChecked(name, 8, calls=120)) for name in names)

    def answers_of(self, side: Any, questions: Any, folder: Path) -> list[Any]:
        self.steps.append(f"ask {side.deployment.name}")
        if side.deployment.name in self.unanswered:
            raise ServerError(f"{side.deployment.name}: out of memory", "out of memory")
        return []

    def judged(self, judge: Any, questions: Any, answers: Mapping[str, Any], folder: Path) -> dict[str, ReplayChecked]:
        self.steps.append(f"judge {', '.join(answers)} by {judge.deployment.name}")
        bad = ReplayChecked(2048, 3.0, 0.05, ("prompt-1: replay regret: token 7 is wrong",))
        return {name: bad if name in self.wrong else RIGHT for name in answers}


def asked(*deployments: str) -> list[Asked]:
    found = questions_of(load_approaches(), BOX, GPU, deployments, ())
    return [each for each in found if each.stack == "cu130" and not each.impossible]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    rates = {"pcie_ipc": 120.0, "pcie_ipc_eagle3": 170.0, "baseline_bs128": 89.5, "eagle3": 54.1}
    made = Bench(tmp_path, rates, STARTS)
    for name in ("checked_all", "answers_of", "judged"):
        monkeypatch.setattr(module, name, getattr(made, name))
    monkeypatch.setattr(module, "questions_for", lambda plain: None)
    return made


def test_sums_then_outputs_then_speed(bench: Bench, tmp_path: Path) -> None:
    (question,) = asked("pcie_ipc")
    found = campaign_of(bench, [question]).try_approach(question)  # type: ignore[arg-type]
    assert bench.steps == [
        "sum pcie_ipc",
        "ask pcie_ipc",
        "judge pcie_ipc by baseline_bs128",
        "measure pcie_ipc",
        "measure baseline_bs128",
        "confirm pcie_ipc",
    ]
    assert found.comparison is not None
    assert found.comparison.now is Outcome.IMPROVES
    kept = read_correctness(tmp_path, "pcie_ipc")
    assert kept is not None
    assert kept.correct
    assert (kept.judge, kept.replay) == ("baseline_bs128", RIGHT)


def test_one_judge_starts_once_for_all_whose_outputs_it_judges(bench: Bench) -> None:
    questions = asked("pcie_ipc", "pcie_ipc_eagle3", "eagle3")
    campaign = campaign_of(bench, questions)  # type: ignore[arg-type]
    for question in questions:
        campaign.try_approach(question)
    assert sum(step.startswith("judge") for step in bench.steps) == 1
    assert campaign.judges == 1  # the night leaves time for it
    assert len(campaign.told) == 2


def test_a_wrong_sum_ends_the_try_before_any_server(bench: Bench) -> None:
    bench.sums["pcie_ipc"] = AllReduceChecked("sglang_pcie_ipc", 8, calls=120, wrong="rank 1: 7 elements wrong")
    (question,) = asked("pcie_ipc")
    found = campaign_of(bench, [question]).try_approach(question)  # type: ignore[arg-type]
    assert bench.steps == ["sum pcie_ipc"]
    assert found.comparison is not None
    assert found.comparison.now is Outcome.WRONG_OUTPUT


def test_wrong_output_ends_the_try_before_speed(bench: Bench) -> None:
    bench.wrong.add("pcie_ipc")
    (question,) = asked("pcie_ipc")
    found = campaign_of(bench, [question]).try_approach(question)  # type: ignore[arg-type]
    assert not any(step.startswith("measure") for step in bench.steps)
    assert found.comparison is not None
    assert found.comparison.now is Outcome.WRONG_OUTPUT
    assert "token 7 is wrong" in str(found)


def test_a_server_that_cannot_be_asked_is_no_judgement_and_spares_the_others(bench: Bench) -> None:
    bench.unanswered.add("pcie_ipc")
    (question,) = asked("pcie_ipc", "pcie_ipc_eagle3")
    found = campaign_of(bench, [question]).try_approach(question)  # type: ignore[arg-type]
    plain, speculative = found.arms
    assert plain.outcome is None
    assert "out of memory" in plain.why
    assert speculative.outcome is Outcome.IMPROVES


def test_with_few_starts_the_reference_is_not_started_in_vain(tmp_path: Path, bench: Bench) -> None:
    bench.options.starts = 1
    (question,) = asked("pcie_ipc")
    found = campaign_of(bench, [question]).try_approach(question)  # type: ignore[arg-type]
    assert "measure baseline_bs128" not in bench.steps
    assert found.undecided
    assert "no baseline: give --starts 10" in str(found)


def test_what_a_release_cannot_express_is_not_tried(bench: Bench) -> None:
    bench.stack = stack("cu128")
    question = next(
        each for each in questions_of(load_approaches(), BOX, GPU, ("pcie_ipc",), ()) if each.stack == "cu128"
    )
    reason = campaign_of(bench, [question]).cannot(question)  # type: ignore[arg-type]
    assert "pcie_ipc" in str(reason)
    assert "0.5.22" in str(reason)


# --- Answers of the first start that is measured anyway.


@pytest.fixture
def measuring(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The bench with the suite's own measurements; a start asks its server if it is told to."""

    def measure_start(subject: Any, role: str, index: int, results: Path, tell: Any) -> StartRecord:
        name = subject.side.deployment.name
        bench.steps.append(f"measure {name} {index}")
        if name in bench.unanswered:
            failure = {"cause": "out of memory", "message": f"{name}: out of memory", "lines": []}
            return start(name, index, 1.0, status="measurement failed", failure=failure, metrics=[])
        if subject.ask is not None:
            subject.ask(SimpleNamespace(url=name))
        return start(name, index, bench._rates[name] * (1 + 0.001 * (index % 5)), role=role)

    def ask(server: Any, questions: Any) -> list[Any]:
        bench.steps.append(f"ask the measured {server.url}")
        return []

    monkeypatch.setattr(measurements, "measure_start", measure_start)
    monkeypatch.setattr(module, "ask", ask)
    plan = Plan(
        run="r",
        box=BOX,
        stack="cu130",
        results=tmp_path,
        starts=STARTS,
        limit_s=None,
        side=lambda deployment: SimpleNamespace(deployment=deployment),
        against=lambda deployment: None,
        block_pairs=2,
        room=1,
        workloads=lambda deployment: (),
    )  # type: ignore[arg-type]
    bench.source = Measurements(plan, bench.show)  # type: ignore[assignment]
    return bench


def test_the_first_measured_start_answers_and_no_other_is_started_for_it(measuring: Bench) -> None:
    (question,) = asked("pcie_ipc")
    campaign = campaign_of(measuring, [question])  # type: ignore[arg-type]
    campaign.ask_first()
    measuring.source.stage1(GPU.deployment("pcie_ipc"))  # as the tests of speed before it do
    found = campaign.try_approach(question)
    assert measuring.steps[:2] == ["measure pcie_ipc 0", "ask the measured pcie_ipc"]
    assert "ask pcie_ipc" not in measuring.steps
    assert measuring.steps.count("ask the measured pcie_ipc") == 1
    assert measuring.steps.index("judge pcie_ipc by baseline_bs128") > measuring.steps.index("sum pcie_ipc")
    assert found.comparison is not None
    assert found.comparison.now is Outcome.IMPROVES


def test_alone_an_approach_answers_before_it_is_measured(measuring: Bench) -> None:
    (question,) = asked("pcie_ipc")
    campaign = campaign_of(measuring, [question])  # type: ignore[arg-type]
    campaign.ask_first()
    campaign.try_approach(question)
    assert measuring.steps[:4] == [
        "sum pcie_ipc",
        "ask pcie_ipc",
        "judge pcie_ipc by baseline_bs128",
        "measure pcie_ipc 0",
    ]
    assert "ask the measured pcie_ipc" not in measuring.steps


def test_a_server_that_failed_is_not_started_once_more_to_be_asked(measuring: Bench) -> None:
    measuring.unanswered.add("pcie_ipc")
    (question,) = asked("pcie_ipc")
    campaign = campaign_of(measuring, [question])  # type: ignore[arg-type]
    campaign.ask_first()
    measuring.source.stage1(GPU.deployment("pcie_ipc"))
    found = campaign.try_approach(question)
    assert measuring.steps == ["measure pcie_ipc 0", "sum pcie_ipc"]
    assert found.comparison is not None
    assert found.comparison.now is Outcome.CRASHES


def test_when_the_time_is_up_no_server_starts_for_outputs(measuring: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.source, "time_left", lambda: False)
    (question,) = asked("pcie_ipc")
    found = campaign_of(measuring, [question]).try_approach(question)  # type: ignore[arg-type]
    assert measuring.steps == ["sum pcie_ipc"]
    assert found.comparison is not None
    assert found.comparison.now is Outcome.NOT_TRIED
    assert not found.comparison.passes()


# --- Outputs of deployments of no approach: what is not timed.


def test_a_way_to_load_answers_on_its_one_start_and_one_judge_judges_it_with_the_approaches(measuring: Bench) -> None:
    measuring._rates["load_prefetch"] = 90.0
    (question,) = asked("pcie_ipc")
    way = by_itself(GPU.deployment("load_prefetch"), GPU)
    campaign = campaign_of(measuring, [question])  # type: ignore[arg-type]
    campaign.outputs_alone = [way]
    campaign.ask_first()
    measuring.source.stage1(GPU.deployment("pcie_ipc"))
    found = campaign.outputs(way)
    campaign.try_approach(question)
    assert found is not None
    assert found.correct
    assert measuring.steps.count("ask the measured load_prefetch") == 1
    assert [step for step in measuring.steps if step.startswith(("judge", "ask load"))] == [
        "judge pcie_ipc, load_prefetch by baseline_bs128"
    ]


def test_a_way_to_load_that_answers_wrongly_is_wrong(measuring: Bench) -> None:
    measuring._rates["load_prefetch"] = 90.0
    measuring.wrong.add("load_prefetch")
    campaign = campaign_of(measuring, [])  # type: ignore[arg-type]
    found = campaign.outputs(by_itself(GPU.deployment("load_prefetch"), GPU))
    assert found is not None
    assert found.correct is False


def test_what_the_night_had_no_time_for_is_not_started_for_its_outputs(measuring: Bench) -> None:
    night = SimpleNamespace(deployments={"load_prefetch": None}, why_not=lambda name: "out of time", records=[])
    measuring.source.night = night  # type: ignore[attr-defined]
    campaign = campaign_of(measuring, [])  # type: ignore[arg-type]
    found = campaign.outputs(by_itself(GPU.deployment("load_prefetch"), GPU))
    assert found is not None
    assert found.gaps == "its server was not started: out of time"
    assert not any(step.startswith(("ask", "judge")) for step in measuring.steps)


def test_what_an_earlier_stretch_has_checked_is_not_started_again(measuring: Bench) -> None:
    measuring._rates["load_prefetch"] = 90.0
    for _ in range(2):
        campaign = campaign_of(measuring, [])  # type: ignore[arg-type]
        found = campaign.outputs(by_itself(GPU.deployment("load_prefetch"), GPU))
        assert found is not None
        assert found.correct
    assert sum(step.startswith("judge") for step in measuring.steps) == 1
