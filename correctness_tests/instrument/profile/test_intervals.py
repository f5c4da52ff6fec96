"""Interval arithmetic against counting microsecond by microsecond, over random passes of several ranks and streams."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.profile.classes import COMMUNICATION, class_of
from fixtures.profile.figures import profile_of
from fixtures.profile.intervals import alone, length, union
from fixtures.profile.trace import Kernel, Launch, Trace

pytestmark = pytest.mark.correctness
NAMES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "all-reduce",
    "ncclDevKernel_AllGather_RING_LL": "other collective",
    "nvjet_tst_64x64": "GEMM",
    "Memcpy DtoD (Device -> Device)": "copy",
    "rms_norm_kernel": "norm",
    "rope": "other",
}
spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda each: (each[0], each[0] + each[1]))
kernels = st.tuples(st.sampled_from(list(NAMES)), spans, st.integers(7, 9))
ranks = st.integers(1, 3).flatmap(
    lambda count: st.lists(st.lists(kernels, min_size=1, max_size=12), min_size=count, max_size=count)
)


def ticks(intervals):
    return {tick for start, end in intervals for tick in range(start, end)}


@given(st.lists(spans), st.lists(spans))
def test_lengths_are_what_counting_gives(some, others):
    assert length(some) == len(ticks(some))
    assert alone(some, others) == len(ticks(some) - ticks(others))
    merged = union(some)
    assert ticks(merged) == ticks(some)
    assert all(one[1] < next_[0] for one, next_ in pairwise(merged)), "disjoint and in order"


def trace_of(rank, world_size, found, passes=1, offset=0):
    """A rank's passes as graph replays of the same kernels, at the rank's own clock."""
    replays = [
        [Kernel(name, start + at, end - start, rank, stream, number) for name, (start, end), stream in found]
        for number in range(1, passes + 1)
        for at in [offset + number * 1000]
    ]
    launches = [Launch(each[0].start - 5, 1, number, True) for number, each in enumerate(replays, 1)]
    return Trace(Path(f"rank{rank}"), rank, world_size, tuple(chain(*replays)), tuple(launches), (), (), ())


@settings(max_examples=300)
@given(ranks, st.integers(1, 3))
def test_figures_are_what_counting_gives(found, passes):
    traces = [trace_of(rank, len(found), each, passes, 7_000 * rank) for rank, each in enumerate(found)]
    usable = {len([name for name, _, _ in each if not name.startswith("Mem")]) for each in found}
    if len(usable) > 1:
        found, traces = found[:1], traces[:1]  # graphs of other sizes are no peers
    profile = profile_of(traces)
    for figures, own in zip(profile.ranks, found, strict=True):
        by_class = {kind: ticks(span for name, span, _ in own if NAMES[name] == kind) for kind in NAMES.values()}
        communication = by_class["all-reduce"] | by_class["other collective"]
        compute = set().union(*(each for kind, each in by_class.items() if kind not in COMMUNICATION))
        first, last = min(span[0] for _, span, _ in own), max(span[1] for _, span, _ in own)
        assert figures.span_us == last - first
        assert figures.communication_us == len(communication)
        assert figures.exposed_us == len(communication - compute)
        assert figures.gaps_us == last - first - len(communication | compute)
        assert figures.classes_us == {kind: len(each) for kind, each in by_class.items() if each}
    own_counts = {kind: sum(NAMES[name] == kind for name, _, _ in found[0]) for kind in NAMES.values()}
    assert profile.counts == {kind: count for kind, count in own_counts.items() if count}
    assert profile.passes == passes
    assert profile.exact


@given(st.lists(st.tuples(st.lists(st.integers(1, 30), min_size=2, max_size=4)), min_size=1, max_size=8), st.data())
def test_waiting_is_what_a_collective_takes_longer_than_its_shortest_peer(rows, data):
    count = min(len(each[0]) for each in rows)
    lengths = [each[0][:count] for each in rows]  # collective × rank
    name = data.draw(st.sampled_from(list(NAMES)[:2]))
    traces = [
        trace_of(rank, count, [(name, (40 * k, 40 * k + row[rank]), 7) for k, row in enumerate(lengths)], 2, 11 * rank)
        for rank in range(count)
    ]
    profile = profile_of(traces)
    expected = [sum(row[rank] - min(row) for row in lengths) for rank in range(count)]
    assert [each.waiting_us for each in profile.ranks] == expected
    assert profile.waiting_us == median(expected)


def test_the_names_are_of_the_classes_that_the_tests_say():
    assert {name: class_of(name) for name in NAMES} == NAMES
