"""What the gate says of one metric."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gate_cases import BASE, TOK_S, TTFT, starts

from fixtures.gate.decide import decide
from fixtures.gate.spec import VERDICTS, MetricSpec, Starts

SHARE = 0.01 / 12


class TestTiming:
    def test_unchanged_starts_are_no_change_without_a_confirmation(self):
        found = decide(TOK_S, BASE, starts(100, 5, 2), share=SHARE)
        assert (found.verdict, found.stage, found.needs_confirmation) == ("no change", 1, False)
        assert found.slowdown_interval[1] < 0.05

    def test_a_suspicion_is_no_verdict_and_asks_for_fresh_starts(self):
        found = decide(TOK_S, BASE, starts(97, 5, 2, 0.015))
        assert found.verdict == "too noisy to tell"
        assert found.needs_confirmation
        assert found.starts_wanted >= 5
        assert "confirm with" in found.reason

    @pytest.mark.parametrize(("metric", "factor"), [(TOK_S, 0.95), (TTFT, 1.05)])
    def test_a_confirmed_slowdown_is_a_regression(self, metric: MetricSpec, factor: float):
        found = decide(metric, BASE, starts(100 * factor, 5, 2), starts(100 * factor, 5, 3), share=SHARE)
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

    @pytest.mark.parametrize("family", [1, 12, 150, 170, 528, 2000])
    @pytest.mark.parametrize("fresh", [5, 8, 10, 14])
    def test_a_clear_slowdown_is_confirmed_in_a_run_of_any_size(self, family: int, fresh: int):
        base, first, second = starts(100, 10, 1, 0.02), starts(93, 5, 2, 0.005), starts(93, fresh, 3, 0.005)
        found = decide(TOK_S, base, first, second, share=0.01 / family)
        assert found.verdict == "regression", found
        assert found.p_value < found.level or "median" in found.method

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
        found = decide(TOK_S, BASE, starts(80, count, 2), share=SHARE)
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
        found = decide(TOK_S, BASE, starts(97, 5, 2, 0.015), starts(96, 2, 3))
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
            ([82], [77.0], "too noisy to tell"),
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
