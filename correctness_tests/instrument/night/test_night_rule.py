"""The sequential rule: what it says of starts that are missing, equal or drifting; and that its parts are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.night.evaluate import false_claims, gpu_box, linear
from fixtures.night.rule import SPENDING, Decision, Observation, closed, look
from fixtures.night.schedule import begin, verdicts
from fixtures.night.simulated import Truth, run_night, steady

HIGHER = {"rate": "higher"}


def rounds(changes: dict[str, float], count: int, spread: float = 0.01, seed: int = 0) -> list[Observation]:
    """Starts of a control and of arms that cost so much more (logs), in `count` rounds with two controls."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(1, count + 1):
        for name in ("control", *changes, "control"):
            cost = changes.get(name, 0.0) + spread * rng.standard_normal()
            found.append(Observation(name, number, len(found) / 6, {"rate": 100 * math.exp(-cost)}, whole=True))
    return found


def sound(decision: Decision) -> None:
    numbers = [decision.p, decision.level, decision.smallest, decision.spread, *decision.interval]
    numbers += [each for each in (decision.ratio, decision.slowdown) if each is not None]
    assert not any(math.isnan(each) for each in numbers), decision


def test_a_large_change_is_called_after_two_rounds_and_the_ratio_is_that_of_the_metric() -> None:
    found = look(rounds({"slow": 0.4, "fast": -0.4, "same": 0.0}, 2), "control", HIGHER, 3)
    assert {arm: each.verdict for (arm, _), each in found.items()} == {
        "slow": "regression",
        "fast": "improvement",
        "same": "no change",
    }
    slow = found[("slow", "rate")]
    assert slow.ratio == pytest.approx(math.exp(-0.4), rel=0.05)
    assert slow.interval[0] < slow.ratio < slow.interval[1] < 1


def test_the_direction_of_the_metric_turns_the_verdict() -> None:
    seen = rounds({"arm": 0.4}, 2)
    assert look(seen, "control", {"rate": "lower"}, 1)[("arm", "rate")].verdict == "improvement"
    with pytest.raises(ValueError, match="higher or lower"):
        look(seen, "control", {"rate": "same"}, 1)


def test_two_starts_call_nothing_below_15_percent_and_one_start_nothing_at_all() -> None:
    exact = look(rounds({"arm": 0.12}, 2, spread=0.0005), "control", HIGHER, 1)[("arm", "rate")]
    assert exact.verdict == "too noisy to tell"
    assert look(rounds({"arm": 0.12}, 3, spread=0.0005), "control", HIGHER, 1)[("arm", "rate")].verdict == "regression"
    assert look(rounds({"arm": 0.9}, 1, spread=0.0005), "control", HIGHER, 1)[("arm", "rate")].open


def test_faster_needs_two_starts_with_all_workloads() -> None:
    seen = rounds({"arm": -0.4}, 3)
    once = [each if each.round == 3 else Observation(each.arm, each.round, each.hours, each.values) for each in seen]
    found = look(once, "control", HIGHER, 1)[("arm", "rate")]
    assert (found.verdict, found.reason) == ("too noisy to tell", "faster, with 1 of 2 starts of all workloads")


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [Observation("control", 1, 0.0, {"rate": 1.0})],
        [Observation("arm", 1, 0.0, {"rate": 1.0})],
        [Observation("arm", 1, 0.0, {}), Observation("control", 1, 0.1, {"rate": 1.0})],
        [Observation("arm", 1, 0.0, {"rate": math.nan}), Observation("control", 1, 0.1, {"rate": 1.0})],
        [Observation("arm", 1, 0.0, {"rate": 2.0}), Observation("control", 1, 0.0, {"rate": 1.0})],
        [Observation("arm", 1, 0.0, {"rate": 2.0}), Observation("control", 2, 0.1, {"rate": 1.0})],
        [Observation("arm", 1, 0.0, {"rate": 2.0}, "a"), Observation("control", 1, 0.1, {"rate": 1.0}, "b")],
    ],
)
def test_what_cannot_be_compared_is_open_with_its_reason(seen: list[Observation]) -> None:
    for decision in look(seen, "control", HIGHER, 1).values():
        sound(decision)
        assert decision.open
        assert decision.reason


def test_all_equal_starts_are_no_change_and_equal_but_other_ones_a_change() -> None:
    same = [
        Observation(name, number, number, {"rate": 7.0}, whole=True) for number in (1, 2) for name in ("arm", "control")
    ]
    assert look(same, "control", HIGHER, 1)[("arm", "rate")].verdict == "no change"
    other = [
        Observation(each.arm, each.round, each.hours, {"rate": 3.0 if each.arm == "arm" else 7.0}) for each in same
    ]
    assert look(other, "control", HIGHER, 1)[("arm", "rate")].verdict == "regression"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["control", "a", "b", "c"]),
            st.integers(1, 4),
            st.floats(-1e3, 1e3),
            st.one_of(st.none(), st.floats(), st.floats(0.5, 2.0)),
            st.sampled_from(["", "later"]),
        ),
        max_size=14,
    )
)
def test_no_starts_whatever_give_nan_or_an_exception(
    given_starts: Sequence[tuple[str, int, float, float | None, str]],
) -> None:
    seen = [Observation(arm, number, at, {} if v is None else {"rate": v}, s) for arm, number, at, v, s in given_starts]
    for decision in look(seen, "control", HIGHER, 3).values():
        sound(decision)


def test_another_night_has_another_level_and_another_slope() -> None:
    seen = rounds({"arm": 0.0}, 2)
    later = [
        Observation(
            each.arm, each.round + 2, each.hours + 24, {"rate": each.values["rate"] * 3 * (1 + each.hours / 9)}, "b"
        )
        for each in rounds({"arm": 0.0}, 2, seed=5)
    ]
    assert look([*seen, *later], "control", HIGHER, 1)[("arm", "rate")].verdict == "no change"


def test_an_arm_is_closed_by_one_slower_metric_or_by_all() -> None:
    def said(arm: str, metric: str, verdict: str) -> tuple[tuple[str, str], Decision]:
        return (arm, metric), Decision(arm, metric, verdict, "")  # type: ignore[arg-type]

    some = dict([said("a", "x", "regression"), said("b", "x", "no change"), said("b", "y", "too noisy to tell")])
    assert closed(some, "a", ["x", "y"])
    assert not closed(some, "b", ["x", "y"])
    assert not closed({}, "a", ["x"])
    assert closed(some | dict([said("b", "y", "improvement")]), "b", ["x", "y"])


# --- the parts are needed: without each of them the error is seen -------------------------------------------------

FAMILY, NIGHTS = 17, 60


def claims(*, drift: bool = False, noisy: bool = False, **without: bool) -> float:
    """The share of nights, of three rounds without any effect, in which something is claimed."""
    wrong = 0
    for night in range(NIGHTS):
        rng = np.random.default_rng([7, night])
        seen = []
        scale = {f"a{at}": math.exp(0.8 * rng.standard_normal()) if noisy else 1.0 for at in range(FAMILY)}
        for number in range(1, 4):
            level = rng.choice((-0.1, 0.1)) if drift else 0.0
            names = list(rng.permutation([*scale, *["control"] * 4]))
            late = names[:9] if number == 3 else names  # arms that left are not in the last round
            for name in [*late, "control"]:
                cost = level + 0.01 * scale.get(name, 1.0) * rng.standard_normal()
                seen.append(Observation(str(name), number, len(seen) / 6, {"rate": math.exp(-cost)}, whole=True))
        found = look(seen, "control", HIGHER, FAMILY, **without)
        wrong += any(each.verdict in ("regression", "improvement") for each in found.values())
    return wrong / NIGHTS


def test_arms_that_differ_in_noise_need_their_own_variance() -> None:
    assert claims(noisy=True, moderated=False) > claims(noisy=True) + 0.03


def test_rounds_of_other_levels_need_their_effects() -> None:
    # without them the levels are noise: what is large goes unseen
    changes = {f"a{at}": 0.0 for at in range(6)} | {"slow": 0.08}
    seen = []
    for each in rounds(changes, 4):
        level = (0.0, 0.15, -0.2, 0.1)[each.round - 1]
        seen.append(Observation(each.arm, each.round, each.hours, {"rate": each.values["rate"] * math.exp(level)}))
    assert look(seen, "control", HIGHER, 7)[("slow", "rate")].verdict == "regression"
    assert look(seen, "control", HIGHER, 7, rounds=False)[("slow", "rate")].open
    assert claims(drift=True) == 0


def test_family_error_of_whole_nights() -> None:
    assert max(false_claims("no drift", 60)) <= 0.02
    assert max(false_claims("linear, 1 %/h", 60)) <= 0.02


def test_a_rule_that_spends_all_of_alpha_at_every_look_is_caught() -> None:
    """Each look at 5 times the share of all, as if no look had been before it, and no least effect."""
    from dataclasses import replace

    anew = replace(SPENDING, error=0.25, claim=(1.0,) * 20, minimum_effect=0.0, two_starts_effect=0.0)
    anew = replace(anew, unchanged=(1e-12,))
    wrong, nights = 0, 40
    for which in range(nights):
        rng = np.random.default_rng([3, which])
        spec = replace(gpu_box(8), seed=which, arms=gpu_box(8).arms[10:18])
        night = replace(begin(spec), spending=anew)
        known = verdicts(run_night(night, Truth(0.01), rng, steady).night)
        wrong += any(each.verdict == "regression" for each in known.values())
    assert wrong / nights > 0.15
    assert linear(np.random.default_rng())(2.0) == pytest.approx(0.02)


# --- start pairs ---------------------------------------------------------------------------------------------------
