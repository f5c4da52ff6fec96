"""What the gate says of one metric, and that each way of breaking the gate is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fixtures.gate import decide as decide_module
from fixtures.gate import statistics
from fixtures.gate.decide import decide
from fixtures.gate.planning import plan_stage2, starts_needed
from fixtures.gate.spec import POLICY, VERDICTS, Judgement, MetricSpec, Starts

TOK_S = MetricSpec("single_stream/decode_tok_s", "timing", "higher", "tok/s")
TTFT = MetricSpec("single_stream/ttft_ms", "timing", "lower", "ms")
Decide = Callable[..., Judgement]


def starts(centre: float, count: int, seed: int, cv: float = 0.01) -> list[float]:
    """`count` values around `centre`; the same for the same seed."""
    return list(centre * np.exp(np.random.default_rng(seed).normal(0, cv, count)))


BASE = starts(100, 10, 1)


class TestTiming:
    def test_unchanged_starts_are_no_change_without_a_confirmation(self):
        found = decide(TOK_S, BASE, starts(100, 5, 2), family=12)
        assert (found.verdict, found.stage, found.needs_confirmation) == ("no change", 1, False)
        assert found.slowdown_interval[1] < 0.05

    def test_a_suspicion_is_no_verdict_and_asks_for_fresh_starts(self):
        found = decide(TOK_S, BASE, starts(96, 5, 2))
        assert found.verdict == "too noisy to tell"
        assert found.needs_confirmation
        assert found.starts_wanted >= 5
        assert "confirm with" in found.reason

    @pytest.mark.parametrize(("metric", "factor"), [(TOK_S, 0.95), (TTFT, 1.05)])
    def test_a_confirmed_slowdown_is_a_regression(self, metric: MetricSpec, factor: float):
        found = decide(metric, BASE, starts(100 * factor, 5, 2), starts(100 * factor, 5, 3), family=12)
        assert (found.verdict, found.stage, found.candidate_starts) == ("regression", 2, 5)
        assert found.blocks
        assert found.interval[0] < found.ratio < found.interval[1]
        assert found.ratio == pytest.approx(factor, rel=0.015)
        assert found.slowdown == pytest.approx(0.05, abs=0.015)

    @pytest.mark.parametrize(("metric", "factor"), [(TOK_S, 1.06), (TTFT, 0.94)])
    def test_a_confirmed_speedup_is_an_improvement(self, metric: MetricSpec, factor: float):
        found = decide(metric, BASE, starts(100 * factor, 5, 2), starts(100 * factor, 5, 3))
        assert found.verdict == "improvement"
        assert not found.blocks

    def test_stage_2_that_shows_nothing_clears_the_suspicion(self):
        found = decide(TOK_S, BASE, starts(96, 5, 2), starts(100, 5, 3))
        assert (found.verdict, found.stage, found.needs_confirmation) == ("no change", 2, False)

    def test_noise_that_hides_five_percent_is_not_called_no_change(self):
        found = decide(TOK_S, starts(100, 10, 1, 0.08), starts(100, 5, 4, 0.08))
        assert found.verdict == "too noisy to tell"
        assert found.smallest_detectable > 0.10

    def test_one_spike_among_the_fresh_starts_does_not_hide_a_collapse(self):
        fresh = [*starts(80, 4, 3), 20.0]
        found = decide(TOK_S, BASE, starts(80, 5, 2), fresh)
        assert found.verdict == "regression"
        assert "median" in found.method

    def test_from_eight_starts_a_side_the_permutation_test_has_to_agree(self):
        found = decide(TOK_S, BASE, starts(95, 5, 2), starts(95, 8, 3))
        assert found.method == "Welch and permutation"
        assert found.verdict == "regression"

    def test_values_that_never_vary_are_compared_exactly(self):
        assert decide(TOK_S, [100.0] * 10, [100.0] * 5).verdict == "no change"
        assert decide(TOK_S, [100.0] * 10, [90.0] * 5, [90.0] * 5).verdict == "regression"

    def test_fresh_starts_made_for_another_metric_are_not_counted(self):
        found = decide(TOK_S, BASE, starts(100, 5, 2), starts(90, 7, 3))
        assert (found.verdict, found.stage, found.candidate_starts) == ("no change", 1, 5)
        assert found.candidate_value == pytest.approx(100, rel=0.02)

    def test_judgement_names_age_and_spread_of_the_baseline(self):
        found = decide(TOK_S, BASE, starts(100, 5, 2), baseline_age_days=40.0)
        assert found.baseline_age_days == 40.0
        assert found.baseline_cv == pytest.approx(0.01, rel=0.5)


class TestFewStarts:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_a_collapse_is_found(self, count: int):
        found = decide(TOK_S, BASE, starts(80, count, 2), family=12)
        assert found.verdict == "regression"
        assert found.needs_confirmation
        assert found.method == "prediction interval"

    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    @pytest.mark.parametrize("factor", [1.0, 0.97, 0.93])
    def test_anything_less_is_never_called_no_change(self, count: int, factor: float):
        found = decide(TOK_S, BASE, starts(100 * factor, count, 2))
        assert found.verdict == "too noisy to tell"

    def test_one_start_on_a_noisy_baseline_finds_no_ten_percent(self):
        assert decide(TOK_S, starts(100, 10, 1, 0.10), [88.0]).verdict == "too noisy to tell"

    def test_stage_2_decides_over_a_collapse_of_one_start(self):
        assert decide(TOK_S, BASE, [80.0], starts(100, 5, 3)).verdict == "no change"
        assert decide(TOK_S, BASE, [80.0], starts(80, 5, 3)).verdict == "regression"

    def test_an_interrupted_stage_2_still_finds_a_collapse_only(self):
        assert decide(TOK_S, BASE, starts(80, 5, 2), starts(80, 2, 3)).verdict == "regression"
        found = decide(TOK_S, BASE, starts(96, 5, 2), starts(96, 2, 3))
        assert found.verdict == "too noisy to tell"
        assert found.needs_confirmation


class TestConstants:
    @pytest.mark.parametrize(
        ("better", "values", "verdict"),
        [
            ("same", [122] * 5, "no change"),
            ("same", [122, 122, 122, 122, 121], "regression"),
            ("same", [123], "regression"),
            ("higher", [121] * 5, "regression"),
            ("higher", [123] * 5, "improvement"),
            ("lower", [121] * 5, "improvement"),
            ("lower", [122, 123], "regression"),
            ("higher", [122, 123], "measurement failed"),
        ],
    )
    def test_exact(self, better: str, values: list[float], verdict: str):
        assert decide(MetricSpec("all_reduces_per_pass", "exact", better), [122] * 10, values).verdict == verdict

    def test_an_exact_metric_that_varies_in_the_baseline_is_no_evidence(self):
        found = decide(MetricSpec("kv_tokens", "exact", "higher"), [122] * 9 + [121], [122] * 5)
        assert found.verdict == "measurement failed"

    @pytest.mark.parametrize(
        ("value", "verdict"),
        [(3.4, "no change"), (3.35, "no change"), (3.2, "regression"), (3.6, "improvement")],
    )
    def test_counted(self, value: float, verdict: str):
        assert decide(MetricSpec("x/accept_length", "counted", "higher"), [3.4] * 10, [value]).verdict == verdict

    def test_counted_within_the_baselines_own_spread_is_too_noisy(self):
        found = decide(MetricSpec("x/accept_length", "counted", "higher"), [3.2, 3.4, 3.6] * 4, [3.25])
        assert found.verdict == "too noisy to tell"

    @pytest.mark.parametrize(
        ("given", "values", "verdict"),
        [
            ([82], starts(82, 5, 2), "no change"),
            ([82], starts(75, 5, 2), "regression"),
            ([82], starts(79, 5, 2, 0.001), "no change"),
            ([82], starts(90, 5, 2), "improvement"),
            ([82], [80.0], "too noisy to tell"),
            ([82], [60.0], "regression"),
            ([78, 90], starts(84, 5, 2), "no change"),
            ([78, 90], starts(70, 5, 2), "regression"),
        ],
    )
    def test_reported_is_a_constant_with_a_margin(self, given: list[float], values: list[float], verdict: str):
        found = decide(MetricSpec("s/decode_tok_s", "reported", "higher", "tok/s"), given, values)
        assert found.verdict == verdict

    def test_a_reported_constant_is_cleared_or_confirmed_by_stage_2_alone(self):
        metric = MetricSpec("s/decode_tok_s", "reported", "higher")
        assert decide(metric, [82], [70.0]).needs_confirmation
        assert decide(metric, [82], [70.0], starts(82, 5, 2)).verdict == "no change"
        assert decide(metric, [82], [70.0], starts(70, 5, 2)).verdict == "regression"


class TestFailClosed:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0, None])
    @pytest.mark.parametrize("kind", ["timing", "exact", "counted", "reported"])
    @pytest.mark.parametrize("place", ["baseline", "stage1", "stage2"])
    def test_a_value_that_is_no_evidence_fails_the_measurement(self, bad: Any, kind: str, place: str):
        given: dict[str, list[Any]] = {"baseline": list(BASE), "stage1": [80.0] * 5, "stage2": [80.0] * 5}
        given[place][2] = bad
        assert decide(MetricSpec("x", kind, "higher"), **given).verdict == "measurement failed"

    @pytest.mark.parametrize("baseline", [[], [100.0], BASE[:9]])
    def test_too_few_starts_in_the_baseline(self, baseline: list[float]):
        assert decide(TOK_S, baseline, starts(100, 5, 2)).verdict == "measurement failed"

    def test_nothing_measured_is_never_a_pass(self):
        assert decide(TOK_S, BASE, []).verdict == "measurement failed"
        assert decide(TOK_S, None, []).verdict == "measurement failed"

    def test_no_baseline_is_neither_pass_nor_regression(self):
        assert decide(TOK_S, None, starts(100, 5, 2)).verdict == "no comparable baseline"

    def test_another_environment_is_listed_and_not_compared(self):
        found = decide(TOK_S, BASE, starts(50, 5, 2), incomparable=("driver: 590 -> 595", "torch: 2.9 -> 2.14"))
        assert found.verdict == "no comparable baseline"
        assert found.differences == ("driver: 590 -> 595", "torch: 2.9 -> 2.14")
        assert "driver" in found.reason

    def test_p99_needs_its_requests(self):
        metric = MetricSpec("c8/ttft_p99_ms", "timing", "lower", "ms")
        values = tuple(starts(100, 5, 2))
        assert decide(metric, BASE, values).verdict == "measurement failed"
        assert decide(metric, BASE, Starts(values, requests=(458,) * 5)).verdict == "measurement failed"
        assert decide(metric, BASE, Starts(values, requests=(459,) * 5)).verdict == "no change"

    def test_the_baseline_is_not_compared_with_itself(self):
        base = Starts(tuple(BASE), tuple(f"b{i}" for i in range(10)))
        found = decide(TOK_S, base, Starts(tuple(BASE[:5]), tuple(f"b{i}" for i in range(5))))
        assert found.verdict == "measurement failed"

    @pytest.mark.parametrize(("kind", "better"), [("timing", "same"), ("speed", "higher"), ("timing", "up")])
    def test_a_metric_that_cannot_be_judged(self, kind: str, better: str):
        assert decide(MetricSpec("x", kind, better), BASE, BASE).verdict == "measurement failed"


def test_every_verdict_is_one_of_the_six_words():
    words = {
        decide(TOK_S, BASE, starts(f, n, 2), s).verdict
        for f in (50, 97, 100, 120)
        for n in (0, 1, 5)
        for s in (None, starts(f, 5, 3))
    }
    assert words <= set(VERDICTS)
    assert len(words) == 5


def test_the_plan_asks_for_the_deployments_and_metrics_that_need_it():
    quiet, open_one = decide(TOK_S, BASE, starts(100, 5, 2)), decide(TTFT, BASE, starts(105, 5, 2))
    plan = plan_stage2({"plain": [quiet], "eagle3": [quiet, open_one]})
    assert [(each.deployment, each.metrics) for each in plan] == [("eagle3", (TTFT.key,))]
    assert plan[0].starts == open_one.starts_wanted
    assert plan_stage2({"eagle3": [open_one]}, {"eagle3": open_one.starts_wanted}) == []


@pytest.mark.parametrize(("cv", "effect", "expected"), [(0.03, 0.05, 9), (0.01, 0.05, 5), (0.10, 0.05, 92)])
def test_starts_for_80_percent_power(cv: float, effect: float, expected: int):
    assert starts_needed(cv, effect) == expected


# --- Mutants. A probe is something the gate must get right; each mutant must fail one of them. ---


def flow(judge: Decide, values: Callable[[int], list[float]], metric: MetricSpec = TOK_S, **more: Any) -> Judgement:
    """A session in short: stage 1, and fresh starts if the gate asks for them."""
    ids = iter(range(1000))

    def launch(count: int) -> Starts:
        return Starts(tuple(values(count)), tuple(f"s{next(ids)}" for _ in range(count)))

    first = launch(5)
    found = judge(metric, BASE, first, **more)
    if found.needs_confirmation:
        found = judge(metric, BASE, first, launch(found.starts_wanted), **more)
    return found


def noise(centre: float, seed: int = 7) -> Callable[[int], list[float]]:
    rng = np.random.default_rng(seed)
    return lambda count: list(centre * np.exp(rng.normal(0, 0.01, count)))


def only_first_bad() -> Callable[[int], list[float]]:
    """Five slow starts, then normal ones: what a busy neighbour does."""
    calls = iter([95.0] + [100.0] * 10)
    rng = np.random.default_rng(3)
    return lambda count: list(next(calls) * np.exp(rng.normal(0, 0.005, count)))


def repeated(values: Iterable[float], times: int) -> Starts:
    """The requests of few starts: many values, few ids."""
    listed = list(values)
    return Starts(tuple(listed * times), tuple(f"s{i}" for i in range(len(listed))) * times)


PROBES: dict[str, Callable[[Decide], bool]] = {
    "a slowdown blocks": lambda judge: flow(judge, noise(92)).verdict == "regression",
    "a speedup does not": lambda judge: flow(judge, noise(108)).verdict == "improvement",
    "a rising latency blocks": lambda judge: flow(judge, noise(108), TTFT).verdict == "regression",
    "no change passes": lambda judge: flow(judge, noise(100)).verdict == "no change",
    "fresh starts clear": lambda judge: flow(judge, only_first_bad()).verdict == "no change",
    "a slowdown stays one": lambda judge: all(flow(judge, noise(95, seed)).blocks for seed in range(20)),
    "zeros are no baseline": lambda judge: judge(TOK_S, [0.0] * 10, BASE[:5]).verdict == "measurement failed",
    "machines are not mixed": lambda judge: (
        flow(judge, noise(50), incomparable=("machine: a -> b",)).verdict == "no comparable baseline"
    ),
    "requests are not starts": lambda judge: (
        judge(TOK_S, BASE, repeated(starts(100, 2, 5), 50)).verdict == "measurement failed"
    ),
    "starts are not used twice": lambda judge: (
        judge(TOK_S, BASE, Starts((90.0,) * 5, tuple("abcde")), Starts((90.0,) * 5, tuple("abcde"))).verdict
        == "measurement failed"
    ),
    "nothing is no pass": lambda judge: judge(TOK_S, BASE, []).blocks,
}


def comparator_disabled(*given: Any, **more: Any) -> Judgement:
    with pytest.MonkeyPatch.context() as patch:
        for module in (statistics, decide_module):
            patch.setattr(module, "called", lambda found, *_: np.zeros(np.shape(found.difference), dtype=np.int8))
        patch.setattr(statistics, "far_outside", lambda base, *_: np.zeros(base.shape[:-1], dtype=np.int8))
        return decide(*given, **more)


def sign_flipped(metric: MetricSpec, *given: Any, **more: Any) -> Judgement:
    return decide(replace(metric, better={"higher": "lower", "lower": "higher"}[metric.better]), *given, **more)


def stage_2_reuses_stage_1(
    metric: MetricSpec, base: Any, first: Starts, second: Starts | None = None, **more: Any
) -> Judgement:
    bare = first.values if isinstance(first, Starts) else first
    return decide(metric, base, bare, None if second is None else bare, **more)


def retry_until_green(metric: MetricSpec, base: Any, first: Any, second: Any = None, **more: Any) -> Judgement:
    """Seven tries with a fifth of the starts each; the first that does not block counts."""
    if second is None:
        return decide(metric, base, first, **more)
    tries = [decide(metric, base, first, [value], **more) for value in Starts.of(second).values]
    return next((each for each in tries if not each.blocks), tries[-1])


def zeros_left_out(metric: MetricSpec, base: Any, *given: Any, **more: Any) -> Judgement:
    kept = [value for value in Starts.of(base).values if value > 0]
    return decide(metric, kept or None, *given, **more)


def environment_ignored(*given: Any, incomparable: Sequence[str] = (), **more: Any) -> Judgement:
    return decide(*given, **more)


def samples_as_starts(metric: MetricSpec, base: Any, *given: Any, **more: Any) -> Judgement:
    return decide(metric, base, *(each.values if isinstance(each, Starts) else each for each in given), **more)


def green_when_empty(metric: MetricSpec, base: Any, first: Any, *given: Any, **more: Any) -> Judgement:
    found = decide(metric, base, first, *given, **more)
    return found if len(Starts.of(first)) else replace(found, verdict="no change")


MUTANTS: dict[str, Decide] = {
    "comparator disabled": comparator_disabled,
    "sign flipped": sign_flipped,
    "stage 2 reuses stage 1": stage_2_reuses_stage_1,
    "retry until green": retry_until_green,
    "baseline of zeros": zeros_left_out,
    "another machine's baseline": environment_ignored,
    "samples counted as starts": samples_as_starts,
    "measured nothing and passed": green_when_empty,
}


@pytest.mark.parametrize("probe", PROBES)
def test_the_gate_passes_every_probe(probe: str):
    assert PROBES[probe](decide)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_caught(mutant: str):
    caught = [name for name, probe in PROBES.items() if not probe(MUTANTS[mutant])]
    assert caught, f"no probe notices: {mutant}"


def test_a_wrong_policy_shows_in_the_probes():
    """A gate that calls everything equal, because its margin is wide, lets the slowdown through."""
    wide = replace(POLICY, minimum_effect=0.5, equivalence=0.5)
    assert not PROBES["a slowdown blocks"](lambda *given, **more: decide(*given, **more, policy=wide))
