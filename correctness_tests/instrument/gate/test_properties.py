"""Properties that hold for any starts: scale, symmetry, monotony, order, and no verdict on what is no
figure."""

from __future__ import annotations

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fixtures.gate.decide import decide
from fixtures.gate.paired import StartPair, balanced_order, decide_paired
from fixtures.gate.spec import Judgement, MetricSpec

LOWER, HIGHER = MetricSpec("w/x", "timing", "lower"), MetricSpec("w/x", "timing", "higher")
MIRROR = {"regression": "improvement", "improvement": "regression"}
BADNESS = {"improvement": -1, "no change": 0, "too noisy to tell": 0, "regression": 1}
QUICK = settings(max_examples=60, deadline=None, derandomize=True)

value = st.floats(min_value=50.0, max_value=200.0)
baselines = st.lists(value, min_size=10, max_size=14)
sides = st.lists(value, min_size=1, max_size=9)
optional = st.none() | sides
close = st.floats(min_value=95.0, max_value=105.0)
bad = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -5.0])


def scaled(values: list[float] | None, factor: float) -> list[float] | None:
    return None if values is None else [each * factor for each in values]


def inverted(values: list[float] | None) -> list[float] | None:
    return None if values is None else [10_000.0 / each for each in values]


def clear_cut(found: Judgement) -> bool:
    """Not within rounding of a threshold, where a change of unit may tip the scale."""
    if not math.isfinite(found.slowdown):
        return True
    edges = [math.log1p(share) for share in (0.02, 0.05, 0.10, -0.02 / 1.02, -0.05 / 1.05, -0.10 / 1.10)]
    ends = [math.log1p(each) for each in (found.slowdown, *found.slowdown_interval) if math.isfinite(each)]
    near_level = math.isfinite(found.p_value) and abs(found.p_value - found.level) < 1e-9
    return not near_level and all(abs(end - edge) > 1e-9 for end in ends for edge in edges)


@QUICK
@given(baselines, sides, optional, st.floats(min_value=1e-6, max_value=1e6))
def test_the_unit_does_not_matter(base: list[float], first: list[float], second: list[float] | None, factor: float):
    found = decide(LOWER, base, first, second)
    assume(clear_cut(found))
    again = decide(LOWER, scaled(base, factor), scaled(first, factor), scaled(second, factor))
    assert again.verdict == found.verdict
    assert again.needs_confirmation == found.needs_confirmation
    assert math.isclose(again.ratio, found.ratio, rel_tol=1e-9)


@QUICK
@given(baselines, sides, optional)
def test_faster_is_the_mirror_of_slower(base: list[float], first: list[float], second: list[float] | None):
    """Turning every value over, in the same direction of better, turns the verdict over."""
    found = decide(LOWER, base, first, second)
    assume(clear_cut(found))
    again = decide(LOWER, inverted(base), inverted(first), inverted(second))
    assert again.verdict == MIRROR.get(found.verdict, found.verdict)
    assert again.needs_confirmation == found.needs_confirmation


@QUICK
@given(baselines, sides, optional)
def test_the_direction_of_better_is_all_that_tells_them_apart(
    base: list[float], first: list[float], second: list[float] | None
):
    found = decide(LOWER, base, first, second)
    assume(clear_cut(found))
    assert decide(HIGHER, base, first, second).verdict == MIRROR.get(found.verdict, found.verdict)


@QUICK
@given(
    st.lists(close, min_size=10, max_size=12),
    st.lists(close, min_size=1, max_size=8),
    st.none() | st.lists(close, min_size=5, max_size=8),
    st.lists(st.floats(min_value=0.7, max_value=1.4), min_size=2, max_size=6),
)
def test_a_greater_slowdown_never_looks_better(
    base: list[float], first: list[float], second: list[float] | None, shifts: list[float]
):
    verdicts = [decide(LOWER, base, scaled(first, each), scaled(second, each)) for each in sorted(shifts)]
    assume(all(clear_cut(each) for each in verdicts))
    badness = [BADNESS[each.verdict] for each in verdicts]
    assert badness == sorted(badness)


@QUICK
@given(baselines, sides, optional, st.randoms(use_true_random=False))
def test_the_order_of_starts_does_not_matter(
    base: list[float], first: list[float], second: list[float] | None, random: object
):
    found = decide(LOWER, base, first, second)
    mixed = [None if each is None else list(each) for each in (base, first, second)]
    for each in mixed:
        if each is not None:
            random.shuffle(each)  # type: ignore[attr-defined]
    again = decide(LOWER, *mixed)
    assert (again.verdict, again.ratio, again.interval) == (found.verdict, found.ratio, found.interval)


@QUICK
@given(baselines, sides, sides, bad, st.integers(0, 2), st.data())
def test_what_is_no_figure_fails_the_measurement(
    base: list[float], first: list[float], second: list[float], wrong: float, where: int, data: st.DataObject
):
    lists = [list(base), list(first), list(second)]
    at = data.draw(st.integers(0, len(lists[where]) - 1))
    lists[where][at] = wrong
    for kind in ("timing", "exact", "counted", "reported"):
        assert decide(MetricSpec("w/x", kind, "lower"), *lists).verdict == "measurement failed"


@QUICK
@given(baselines, sides, optional, st.sampled_from(["timing", "counted", "reported", "exact"]))
def test_a_verdict_comes_with_its_evidence(
    base: list[float], first: list[float], second: list[float] | None, kind: str
):
    found = decide(MetricSpec("w/x", kind, "lower"), base, first, second, share=0.001)
    assert "\n" not in found.reason
    assert found.reason
    if found.verdict == "no change" and kind == "timing":
        assert found.slowdown_interval[1] < 0.05
        assert found.candidate_starts >= 5
    if found.needs_confirmation:
        assert found.starts_wanted >= min(5, len(first))


pairs = st.lists(
    st.tuples(st.lists(close, min_size=4, max_size=4), st.lists(close, min_size=4, max_size=4)), min_size=1, max_size=6
)


def as_pairs(blocks: list[tuple[list[float], list[float]]], shift: float = 1.0) -> list[StartPair]:
    order = balanced_order(4)
    return [StartPair(tuple(old), tuple(each * shift for each in new), order) for old, new in blocks]


@QUICK
@given(pairs, st.lists(st.floats(min_value=0.7, max_value=1.4), min_size=2, max_size=5))
def test_paired_mode_is_monotone_and_symmetric(blocks: list[tuple[list[float], list[float]]], shifts: list[float]):
    found = [decide_paired(LOWER, as_pairs(blocks, each)) for each in sorted(shifts)]
    assume(all(clear_cut(each) for each in found))
    badness = [BADNESS[each.verdict] for each in found]
    assert badness == sorted(badness)
    for each in found:
        assert each.verdict in BADNESS
    swapped = [StartPair(pair.candidate, pair.baseline, pair.candidate_first) for pair in as_pairs(blocks)]
    once = decide_paired(LOWER, as_pairs(blocks))
    assume(clear_cut(once))
    assert decide_paired(LOWER, swapped).verdict == MIRROR.get(once.verdict, once.verdict)
