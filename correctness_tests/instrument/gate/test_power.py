"""The smallest change that is said to be found is found: with 80 % power, through every stage."""

from __future__ import annotations

import numpy as np
import pytest

from fixtures.gate.decide import decide
from fixtures.gate.paired import StartPair, decide_paired, paired_signs
from fixtures.gate.power import wanted_starts
from fixtures.gate.rivals import gate_rows
from fixtures.gate.spec import MetricSpec

MS = MetricSpec("w/x", "timing", "lower", "ms")
ROWS = 3000


def centred(count: int, cv: float, rng: np.random.Generator) -> np.ndarray:
    """Logs with a mean of exactly 0 and a standard deviation of exactly `cv`."""
    values = rng.standard_normal(count)
    return cv * (values - values.mean()) / values.std(ddof=1)


@pytest.mark.parametrize("share", [0.01, 0.01 / 20, 0.01 / 100, 0.01 / 500])
@pytest.mark.parametrize(("cv", "fresh"), [(0.01, 5), (0.02, 5), (0.02, 10), (0.04, 10)])
def test_the_printed_change_is_found_in_four_of_five(cv: float, fresh: int, share: float):
    rng = np.random.default_rng(int(1e6 * cv) + fresh)
    base, first, second = (np.exp(centred(count, cv, rng)) for count in (10, 5, fresh))
    printed = decide(MS, base, first * 1.2, second * 1.2, share=share).smallest_detectable
    shift = np.log1p(printed)
    rows = [cv * rng.standard_normal((ROWS, count)) for count in (10, 5, fresh)]
    found = gate_rows_of(rows[0], rows[1] + shift, rows[2] + shift, share)
    assert 0.75 <= found <= 0.85, (printed, found)


def gate_rows_of(base: np.ndarray, first: np.ndarray, fresh: np.ndarray, share: float) -> float:
    """The share that is called with exactly these fresh starts."""
    from fixtures.gate.power import levels
    from fixtures.gate.spec import POLICY
    from fixtures.gate.statistics import two_stages

    least = float(np.log1p(POLICY.minimum_effect))
    limits = levels(share, base.shape[1], first.shape[1], fresh.shape[1])
    return float((two_stages(base, first, fresh, limits, (least, least), POLICY) > 0).mean())


@pytest.mark.parametrize("share", [0.01, 1e-4, 2e-5])
def test_more_fresh_starts_find_more(share: float):
    """Of 7, 8 and 10: nothing else has to agree from some number on."""
    rng = np.random.default_rng(3)
    base, first = 0.02 * rng.standard_normal((ROWS, 10)), 0.02 * rng.standard_normal((ROWS, 5)) + np.log1p(0.05)
    fresh = 0.02 * rng.standard_normal((ROWS, 10)) + np.log1p(0.05)
    found = [gate_rows_of(base, first, fresh[:, :count], share) for count in (5, 6, 7, 8, 9, 10)]
    assert found == sorted(found)


def test_a_stricter_share_asks_for_more_fresh_starts():
    quiet = np.linspace(-0.015, 0.015, 10)
    asked = [int(wanted_starts(quiet, quiet[:5], share)) for share in (0.01, 1e-4, 1e-5)]
    assert asked == sorted(asked)
    assert asked[0] < asked[-1]


def test_rows_of_pairs_say_what_decide_paired_says():
    rng = np.random.default_rng(5)
    for at in range(60):
        ratios = 0.02 * rng.standard_normal(8) + float(rng.choice([0.0, 0.05, -0.05, 0.12]))
        pairs = [
            StartPair((1.0, 1.0), (float(np.exp(each)),) * 2, (False, True), (f"{at}b{n}", f"{at}c{n}"))
            for n, each in enumerate(ratios)
        ]
        found = decide_paired(MS, pairs, share=0.001)
        sign = {"regression": 1, "improvement": -1}.get(found.verdict, 0)
        assert int(paired_signs(ratios[None], 0.001)[0]) == sign, found


def test_rows_of_the_evaluation_use_the_planned_starts():
    rng = np.random.default_rng(9)
    base, first, fresh = (0.004 * rng.standard_normal((1, count)) for count in (10, 5, 10))
    fresh[:, 5:] += 1.0  # never used: five are asked for
    assert int(wanted_starts(base, first)[0]) == 5
    assert int(gate_rows(base, first + 0.05, fresh + 0.05)[0]) == 1
