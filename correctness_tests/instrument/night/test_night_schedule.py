"""A night's schedule under a script of troubles: failing controls and arms, interruption anywhere, any budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.night.rule import Observation
from fixtures.night.schedule import begin, finished, next_start, not_measured, resume, verdicts
from fixtures.night.spec import Finished, NightArm, NightError, NightSpec, NightStart, NightStop, Takes, Trouble
from fixtures.night.state import Night, observations

TAKES = Takes(480, 120, 480)
GAINS = {"fast": 0.5, "slow": None, "same": 0.1, "other": 0.0}
COSTS = {"fast": -0.4, "slow": 0.4, "same": 0.0, "other": 0.03}
Script = Callable[[NightStart], Trouble | None]


def spec_of(**changed: object) -> NightSpec:
    arms = tuple(NightArm(name, TAKES, gain) for name, gain in GAINS.items())
    return replace(NightSpec(NightArm("control", TAKES), arms, {"rate": "higher"}), **changed)  # type: ignore[arg-type]


def done(night: Night, start: NightStart, now: float, script: Script = lambda _: None) -> Finished:
    """What comes of a start: the same for the same number, whenever it is made."""
    ended = now + night.spec.arm(start.deployment).takes.of(start.workloads)
    if trouble := script(start):
        return Finished(start, now, ended, None, trouble)
    noise = float(np.random.default_rng([9, start.number]).standard_normal())
    values = {"rate": float(np.exp(0.01 * noise - COSTS.get(start.deployment, 0.0)))}
    seen = Observation(start.deployment, start.round, ended / 3600, values, night.session, start.workloads == "all")
    cold = night.spec.arm(start.deployment).compiles == 1 and start.deployment not in night.served
    return Finished(start, now, ended, seen if start.workloads != "none" and not cold else None)


def go(night: Night, script: Script = lambda _: None, most: int = 10_000) -> tuple[Night, NightStop | None]:
    now = max((each.ended_s for each in night.finished), default=0.0)
    for _ in range(most):
        start = next_start(night, now)
        if isinstance(start, NightStop):
            return night, start
        night = finished(night, done(night, start, now, script))
        now = night.finished[-1].ended_s
    return night, None


def said(night: Night) -> Mapping[str, str]:
    return {arm: each.verdict for (arm, _), each in verdicts(night).items()}


def test_a_night_decides_its_arms_and_ends() -> None:
    night, stop = go(begin(spec_of()))
    assert stop is not None
    assert stop.kind == "done"
    assert said(night) | {"other": ""} == {
        "fast": "improvement",
        "slow": "regression",
        "same": "no change",
        "other": "",
    }
    rounds = [each.start.round for each in night.finished]
    assert rounds == sorted(rounds)
    for number in set(rounds):
        names = [each.start.deployment for each in night.finished if each.start.round == number]
        arms = len(names) - names.count("control")
        assert names.count("control") == (2 if number <= 2 else max(1, round(arms**0.5)))
        assert len(set(names)) == arms + 1


def test_the_order_comes_from_the_seed() -> None:
    def names(seed: int) -> list[str]:
        return [each.start.deployment for each in go(begin(spec_of(seed=seed)))[0].finished]

    assert names(1) == names(1)
    assert names(1) != names(2)


def test_interruption_at_every_start_gives_the_same_night() -> None:
    whole, _ = go(begin(spec_of()))
    for at in range(len(whole.finished) + 1):
        part, _ = go(begin(spec_of()), most=at)
        # what was finished comes back from records, some of it twice
        again = resume(spec_of(), [*part.finished, *part.finished[:3]])
        rest, stop = go(again)
        assert stop is not None
        assert rest.finished == whole.finished, at
        assert verdicts(rest) == verdicts(whole)


def cold_spec(**changed: object) -> NightSpec:
    """Something is compiled in every first start."""
    arms = tuple(NightArm(name, TAKES, gain, compiles=1.0) for name, gain in GAINS.items())
    return spec_of(control=NightArm("control", TAKES, compiles=1.0), arms=arms, **changed)


def test_in_a_cold_night_first_starts_do_not_count_and_are_short() -> None:
    night, _ = go(begin(cold_spec()))
    first = [each for each in night.finished if each.start.round == 1]
    assert [each.start.deployment for each in first].count("control") == 1, "nothing to compare with it"
    assert {each.start.deployment for each in first} == {"control", *GAINS}
    assert {each.start.workloads for each in first} == {"headline"}
    assert not [each for each in observations(night) if each.round == 1]
    warm = go(begin(spec_of()))[0]
    assert said(night)["slow"] == "regression"
    assert len(night.finished) <= len(warm.finished) + len(GAINS) + 1


@pytest.mark.parametrize("few", [2, 4])
@pytest.mark.parametrize("expected", [0.0, 0.5])
def test_arms_that_count_get_the_controls_that_their_round_lacks(few: int, expected: float) -> None:
    """Where something is compiled in the control's first start alone, whatever was expected of the arms."""
    arms = tuple(replace(arm, compiles=expected) for arm in spec_of().arms[:few])
    night, stop = go(begin(spec_of(control=NightArm("control", TAKES, compiles=1.0), arms=arms)))
    assert stop is not None
    first = [each.arm for each in observations(night) if each.round == 1]
    assert {*first} == {"control", *(arm.name for arm in arms)}
    assert first.count("control") == 2
    again = resume(night.spec, night.finished)
    assert (again.finished, verdicts(again)) == (night.finished, verdicts(night))


def test_a_first_start_in_which_something_was_compiled_does_not_count() -> None:
    night = begin(spec_of())
    start = next_start(night, 0.0)
    assert isinstance(start, NightStart)
    night = finished(night, Finished(start, 0.0, 600.0))
    assert verdicts(night) == {}
    assert go(night)[1] is not None


def test_a_control_that_fails_in_round_2_stops_the_night_and_resume_goes_on() -> None:
    def script(start: NightStart) -> Trouble | None:
        return Trouble("crash", "it crashed") if (start.deployment, start.round) == ("control", 2) else None

    night, stop = go(begin(spec_of()), script)
    assert stop is not None
    assert stop.kind == "control failed"
    assert "--resume" in stop.reason
    assert isinstance(next_start(night, 1e6), NightStop), "it stays stopped"
    rest, stop = go(resume(spec_of(), night.finished))
    assert stop is not None
    assert stop.kind == "done"
    assert said(rest)["slow"] == "regression"
    numbers = [each.start.number for each in rest.finished]
    assert len(set(numbers)) == len(numbers)


def test_the_same_cause_at_two_deployments_stops_the_night_and_both_are_tried_again() -> None:
    def script(start: NightStart) -> Trouble | None:
        return Trouble("disk full", "no space left") if start.deployment in ("fast", "slow") else None

    night, stop = go(begin(spec_of()), script)
    assert stop is not None
    assert stop.kind == "same cause"
    assert "disk full" in stop.reason
    rest, _ = go(resume(spec_of(), night.finished))
    assert said(rest)["fast"] == "improvement"
    assert said(rest)["slow"] == "regression"


def test_arms_that_are_refused_by_their_own_nature_never_stop_the_night() -> None:
    night, stop = go(
        begin(spec_of()),
        lambda start: None if start.deployment == "control" else Trouble("unsupported", "not here", "refused"),
    )
    assert stop is not None
    assert stop.kind == "done"
    assert set(night.failed) == set(GAINS)
    assert not_measured(night) == dict.fromkeys(GAINS, "not here")
    assert [each.start.deployment for each in night.finished].count("fast") == 1


@pytest.mark.parametrize("who", ["same", "control"])
def test_what_may_be_the_infrastructure_is_tried_once_more(who: str) -> None:
    tries = []

    def once(start: NightStart) -> Trouble | None:
        if start.deployment != who or tries:
            return None
        tries.append(start)
        return Trouble("port", "port in use", "infrastructure")

    night, stop = go(begin(spec_of()), once)
    assert stop is not None
    assert stop.kind == "done"
    assert night.failed == {}
    assert said(night)["same"] == "no change"

    def always(start: NightStart) -> Trouble | None:
        return Trouble("port", "port in use", "infrastructure") if start.deployment == who else None

    night, stop = go(begin(spec_of()), always)
    assert stop is not None
    assert [each.start.deployment for each in night.finished].count(who) == 2
    assert stop.kind == ("control failed" if who == "control" else "done")
    assert who in night.failed or who == "control"


@pytest.mark.parametrize("who", ["same", "control"])
def test_a_start_on_a_machine_that_stood_still_is_made_again_and_fails_nothing_that_has_served(who: str) -> None:
    def disturbed(start: NightStart) -> Trouble | None:
        still = start.deployment == who and start.round == 2
        return Trouble("bunched", "client or server stood still", "disturbed") if still else None

    night, stop = go(begin(spec_of()), disturbed)
    assert stop is not None
    assert stop.kind == "done"
    assert night.failed == {}
    assert said(night)["same"] == "no change"
    tries = [each for each in night.finished if each.trouble]
    assert len(tries) >= 2

    night, stop = go(begin(spec_of()), lambda start: disturbed(replace(start, round=2)))
    assert stop is not None
    assert [each.start.deployment for each in night.finished].count(who) == 2
    assert stop.kind == ("control failed" if who == "control" else "done")
    assert who in night.failed or who == "control"


def test_a_twin_comes_after_its_plain_arm_and_falls_with_it() -> None:
    arms = (NightArm("twin", TAKES, 0.9, twin_of="plain"), NightArm("plain", TAKES), NightArm("third", TAKES))
    for seed in range(8):
        night, _ = go(begin(spec_of(arms=arms, seed=seed)))
        names = [each.start.deployment for each in night.finished]
        assert names.index("plain") < names.index("twin")
        assert "twin" in said(night)
    night, stop = go(
        begin(spec_of(arms=arms)),
        lambda start: Trouble("crash", "it crashed") if start.deployment == "plain" else None,
    )
    assert stop is not None
    assert "twin" not in [each.start.deployment for each in night.finished]
    assert not_measured(night)["twin"] == "not measured: plain, whose twin it is, failed"


def test_arms_that_are_not_timed_start_once_and_those_after_an_effect_wait_for_it() -> None:
    arms = (
        NightArm("exact", TAKES, timed=False),
        NightArm("slow", TAKES),
        NightArm("same", TAKES),
        NightArm("causal", TAKES, after="slow"),
        NightArm("never", TAKES, after="same"),
        NightArm("known", TAKES, refused="no SM120"),
    )
    night, stop = go(begin(spec_of(arms=arms)))
    assert stop is not None
    names = [each.start.deployment for each in night.finished]
    assert names.count("exact") == 1
    assert names.index("causal") > 5
    assert "causal" in said(night)
    assert "never" not in names
    assert "known" not in names
    assert not_measured(night) == {
        "exact": "checked",
        "never": "waits for an effect of same",
        "known": "refused: no SM120",
    }


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 12 * 3600), st.booleans(), st.integers(0, 3))
def test_nothing_runs_past_the_end_whatever_the_budget(budget: float, cold: bool, seed: int) -> None:
    night, stop = go(begin(cold_spec(budget_s=budget, seed=seed) if cold else spec_of(budget_s=budget, seed=seed)))
    assert stop is not None
    assert all(each.ended_s <= budget for each in night.finished)
    if stop.kind == "out of time":
        assert "--resume" in stop.reason
    missing = not_measured(night)
    assert set(missing) | {arm for arm, _ in verdicts(night)} == set(GAINS)
    assert set(missing.values()) <= {"out of time"}


def test_a_short_night_gives_its_time_to_what_is_worth_most() -> None:
    night, stop = go(begin(spec_of(budget_s=140 * 60)))
    assert stop is not None
    assert stop.kind == "out of time"
    assert said(night)["fast"] == "improvement"
    assert {each.arm for each in observations(night) if each.round == 1} == {"control", "fast"}
    assert "slow" in not_measured(go(begin(spec_of(budget_s=70 * 60)))[0])


def test_a_night_that_was_cut_goes_on_in_another_with_controls_of_its_own() -> None:
    night, _ = go(begin(spec_of(budget_s=2 * 3600)))
    again = resume(spec_of(), night.finished, "second night")
    rest, stop = go(again)
    assert stop is not None
    assert stop.kind == "done"
    assert not not_measured(rest)
    for number in {each.round for each in observations(rest) if each.session}:
        mine = [each.arm for each in observations(rest) if each.session and each.round == number]
        assert "control" in mine


def test_a_session_that_the_observations_do_not_name_ends_all_the_same() -> None:
    night, _ = go(begin(spec_of()), most=3)
    again = resume(spec_of(), night.finished, "second night")
    while not isinstance(start := next_start(again, 0.0), NightStop):
        again = finished(again, done(replace(again, session=""), start, 0.0))
        assert len(again.finished) < 60


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arms": (NightArm("a", TAKES), NightArm("a", TAKES))}, "a is there twice"),
        ({"arms": (NightArm("a", TAKES, twin_of="b"),)}, "a waits for b"),
        ({"arms": (NightArm("a", Takes(float("nan"), 1, 1)),)}, "give finite ones"),
        ({"headline": {}}, "headline metrics must be given"),
        ({"headline": {"rate": "same"}}, "better `higher` or `lower`"),
        ({"rounds": 1}, "give 2 or more"),
        ({"budget_s": 0}, "more than 0"),
    ],
)
def test_a_night_that_cannot_be_planned_says_why_in_one_line(changed: dict[str, object], words: str) -> None:
    with pytest.raises(NightError, match=words):
        spec_of(**changed)


def test_what_has_no_verdict_to_win_comes_last_and_takes_no_time_from_what_has() -> None:
    """Ways to load, for one."""
    ways = tuple(NightArm(f"way {number}", TAKES, timed=False) for number in range(3))
    arms = (*ways, *spec_of().arms, NightArm("expected to be slower", TAKES, -0.3))
    for budget in (None, *range(60, 600, 90)):
        limit = None if budget is None else 60.0 * budget
        with_ways, _ = go(begin(spec_of(arms=arms, budget_s=limit, planned=5)))
        without, _ = go(begin(spec_of(arms=arms[3:], budget_s=limit, planned=5)))
        names = [[each.start.deployment for each in night.finished] for night in (with_ways, without)]
        timed = [name for name in names[0] if not name.startswith("way")]
        assert timed == names[1], budget
        assert names[0][: len(timed)] == timed, budget
        assert len(names[0]) <= len(timed) + 3
    whole, stop = go(begin(spec_of(arms=arms, planned=5)))
    assert stop is not None
    assert stop.kind == "done"
    assert sorted(each.start.deployment for each in whole.finished[-3:]) == ["way 0", "way 1", "way 2"]


def test_a_night_of_nothing_timed_has_one_control() -> None:
    night, stop = go(begin(spec_of(arms=(NightArm("one", TAKES, timed=False), NightArm("two", TAKES, timed=False)))))
    assert stop is not None
    names = [each.start.deployment for each in night.finished]
    assert names[0] == "control"
    assert sorted(names[1:]) == ["one", "two"]
