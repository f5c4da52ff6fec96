"""What a plan promises, against what happens: hours, verdicts, the changes that show, the rounds still needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.night.answers import rounds_more
from fixtures.night.evaluate import gpu_box
from fixtures.night.plan import plan_lines, planned
from fixtures.night.rule import Decision
from fixtures.night.schedule import begin, finished, verdicts
from fixtures.night.simulated import Course, Truth, drawn_truth, run_night
from fixtures.night.spec import NightArm, NightSpec, Takes

TAKES = Takes(480, 120, 480)
GAINS = {"fast": 0.5, "slow": -0.3, "same": None, "unsure": 0.09}
SPREADS = {"rate": 0.01, "delay": 0.02}


def spec_of(**changed: object) -> NightSpec:
    arms = tuple(NightArm(name, TAKES, gain, fails=0.1) for name, gain in GAINS.items())
    spec = NightSpec(NightArm("control", TAKES), arms, {"rate": "higher", "delay": "lower"}, spreads=SPREADS)
    return replace(spec, **changed)  # type: ignore[arg-type]


def happened(spec: NightSpec, nights: int) -> list[Course]:
    """Nights as expected, whose starts take 3 % more or less."""
    found = []
    for which in range(nights):
        rng = np.random.default_rng([11, which])
        found.append(run_night(begin(replace(spec, seed=which)), replace(drawn_truth(spec, rng), pace=0.03), rng))
    return found


def test_a_plan_names_every_start_with_its_times_and_starts_nothing() -> None:
    night = begin(spec_of(arms=(*spec_of().arms, NightArm("known", TAKES, refused="no SM120"))))
    plan = planned(night, nights=20)
    assert plan == planned(night, nights=20)
    assert plan.rows[0].begins_s == 0
    assert all(one.ends_s == two.begins_s for one, two in zip(plan.rows, plan.rows[1:], strict=False))
    assert plan.range[0] <= plan.hours <= plan.range[1]
    assert plan.skipped == {"known": "refused: no SM120"}
    lines = plan_lines(plan)
    assert all(len(line) <= 120 for line in lines)
    assert sum("round" in line for line in lines) >= len(plan.rows)
    short = planned(begin(spec_of(budget_s=3600)), nights=20)
    assert short.unfit
    assert short.rows[-1].ends_s <= 3600


def test_a_plan_tells_in_a_line_which_verdicts_to_expect_of_an_arm_and_what_each_metric_can_show() -> None:
    plan = planned(begin(spec_of(spreads={"rate": 0.01, "delay": 0.06}, rounds=5)), nights=60)
    lines = plan_lines(plan, starts=False)
    assert any("shows in rate, delay" in line for line in lines)
    told = {name: next(line for line in lines if line.startswith(f"{name}: ")) for name in GAINS}
    assert told["fast"].startswith("fast: improvement ")
    assert told["slow"].startswith("slow: regression")
    for each in plan.expected:
        assert sum(each.says.values()) == pytest.approx(1)
    unsure = next(each for each in plan.expected if each.arm == "unsure").smallest
    assert unsure["delay"] > 2 * unsure["rate"]


@pytest.mark.parametrize("changed", [{}, {"budget_s": 3.5 * 3600}, {"control": NightArm("control", TAKES, compiles=1)}])
def test_hours_are_within_a_tenth_and_what_shows_within_a_fifth_of_what_happens(changed: dict[str, object]) -> None:
    spec = spec_of(**changed)
    plan, nights = planned(begin(spec), nights=100), happened(spec, 100)
    assert plan.hours == pytest.approx(float(np.median([each.end_s for each in nights])) / 3600, rel=0.1)
    for each in plan.expected:
        for metric, smallest in each.smallest.items():
            seen = [verdicts(one.night).get((each.arm, metric)) for one in nights]
            shown = float(np.median([known.smallest for known in seen if known is not None]))
            assert smallest == pytest.approx(shown, rel=0.2), (each.arm, metric)
        verdict, share = next(iter(each.says.items()))
        assert share == pytest.approx(np.mean([_says(one, each.arm) == verdict for one in nights]), abs=0.2), (
            each.arm,
            verdict,
        )


def _says(course: Course, arm: str) -> str:
    """The verdict of an arm as a reader sums its metrics up."""
    found = {each.verdict for (name, _), each in verdicts(course.night).items() if name == arm}
    order = ("regression", "improvement", "too noisy to tell", "no change")
    if arm in course.night.failed:
        return "fails"
    return next((each for each in order if each in found), "not measured")


@pytest.mark.parametrize(("arms", "spread", "nights"), [(1, 0.04, 40), (17, 0.03, 6)])
def test_the_rounds_that_are_said_to_be_needed_are_enough_in_most_nights(arms: int, spread: float, nights: int) -> None:
    """Where few are said to be: with few degrees of freedom the normal distribution is right in a third of them."""
    kept = []
    for which in range(nights):
        rng = np.random.default_rng([5, which])
        few = tuple(replace(arm, gain=None) for arm in gpu_box(8).arms[10 : 10 + arms])
        spec = replace(gpu_box(8, spread), arms=few, seed=which, rounds=20)
        truth = Truth(spread, {arm.name: float(rng.choice([0, 0.01, 0.03, -0.06, 0.1, 0.2])) for arm in few})
        for seen in _seen(run_night(begin(spec), truth, rng)).values():
            for at, decision in enumerate(seen):
                more = rounds_more(decision) if decision.open and decision.starts > 1 else None
                if more is not None and more <= 3:
                    later = [each.starts - decision.starts for each in seen[at + 1 :] if not each.open]
                    kept.append(bool(later) and later[0] <= more)
    assert len(kept) > 60
    assert 0.5 < np.mean(kept) < 0.9


def _seen(course: Course) -> dict[str, list[Decision]]:
    """By arm: what was known after each round."""
    night, found = begin(course.night.spec), {}  # type: ignore[var-annotated]
    for each in course.night.finished:
        before, night = night.round, finished(night, each)
        for (arm, _), decision in night.decisions.items() if night.round > before else ():
            found.setdefault(arm, []).append(decision)
    return found
