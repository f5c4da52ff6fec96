"""Which pass a kernel is of, where steps lie in each other, replay several graphs, or run on several threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.profile.passes import passes
from fixtures.profile.trace import Annotation, Kernel, Launch, Trace

pytestmark = pytest.mark.correctness


def trace(annotations, launches):
    """One kernel for each launch, long after it, as on a GPU that is behind."""
    kernels = tuple(Kernel(f"k{each.correlation}", 9000 + each.start, 1, 0, 7, each.correlation) for each in launches)
    return Trace(Path("trace"), 0, 1, kernels, tuple(sorted(launches)), tuple(annotations), (), ())


def names(one):
    return [each.name for each in one.kernels], [each.name for each in one.beside]


def test_a_step_has_all_its_graphs_and_an_inner_step_its_own():
    steps = [
        Annotation("step[EXTEND bs=2 toks=99]", 0, 100, 1),
        Annotation("step[VERIFY bs=1]", 200, 100, 1),
        Annotation("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", 220, 20, 1),
        Annotation("step[TARGET_VERIFY]", 205, 40, 2),
        Annotation("step[IDLE bs=0]", 400, 10, 1),
    ]
    launches = [
        Launch(10, 1, 1, True),
        Launch(20, 1, 2, False),
        Launch(30, 1, 3, True),
        Launch(210, 1, 4, True),
        Launch(230, 1, 5, True),
        Launch(230, 2, 6, False),
        Launch(150, 1, 7, True),
        Launch(210, 3, 8, True),
    ]
    found = passes(trace(steps, launches))
    assert [(each.kind, each.size, *names(each)) for each in found] == [
        ("EXTEND", 2, ["k1", "k3"], ["k2"]),
        ("VERIFY", 1, ["k4"], []),
        ("DRAFT_LOOP", 3, ["k5"], []),
        ("TARGET_VERIFY", 0, ["k6"], []),
    ]


def test_without_a_step_around_them_graphs_are_passes():
    steps = [Annotation("step[IDLE bs=0]", 400, 10, 1)]
    found = passes(trace(steps, [Launch(10, 1, 1, True), Launch(20, 1, 2, False)]))
    assert [(each.kind, each.size, *names(each)) for each in found] == [("graph", 1, ["k1"], [])]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(1, 2)), unique_by=lambda each: each[0]),
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 3)), min_size=1),
)
def test_a_launch_is_of_the_latest_step_around_it(steps, calls):
    annotations = [Annotation(f"step[S{number} bs=1]", *each) for number, each in enumerate(steps)]
    launches = [Launch(at, thread, number, True) for number, (at, thread) in enumerate(calls, 1)]
    expected = {}
    for launch in launches:
        around = [
            (start, f"S{number}")
            for number, (start, length, thread) in enumerate(steps)
            if thread == launch.thread and start <= launch.start <= start + length
        ]
        if around:
            expected.setdefault(max(around)[1], []).append(f"k{launch.correlation}")
    found = {each.kind: sorted(names(each)[0]) for each in passes(trace(annotations, launches))}
    if expected:
        assert found == {kind: sorted(several) for kind, several in expected.items()}
    else:
        assert set(found) == {"graph"}
