"""A profile of several ranks: what is odd in one line each, what changed between two, and its form in a record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_intervals import trace_of

from fixtures.errors import ProfileError
from fixtures.profile.changed import attribution, changed, counts_line, unlike
from fixtures.profile.figures import Profile, profile_of
from fixtures.profile.trace import Annotation, Kernel, Trace

pytestmark = pytest.mark.correctness
REDUCE, GEMM, NORM = "allreduce_fusion_kernel_oneshot_lamport<8>", "nvjet_tst_64x64", "rms_norm_kernel"
COPY = "Memcpy DtoD (Device -> Device)"


def layers(count=4, reduce_us=30, gemm_us=10, copies=0, norms=1, gap=0, late=0):
    """A pass of so many layers: GEMM, copies, all-reduce, norms, on one stream; late: each all-reduce waits."""
    found, at = [], 0
    for _ in range(count):
        row = [(GEMM, gemm_us), *[(COPY, 1)] * copies, (REDUCE, reduce_us + late), *[(NORM, 2)] * norms]
        for name, us in row:
            found.append((name, (at, at + us), 7))
            at += us
        at += gap
    return found


def profile(*ranks, passes=2, world_size=None):
    return profile_of([trace_of(rank, world_size or len(ranks), each, passes) for rank, each in enumerate(ranks)])


def test_a_profile_stays_the_same_through_a_record():
    one = profile(layers(late=5), layers())
    assert Profile.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert one.counts == {"all-reduce": 4, "norm": 4, "GEMM": 4}
    assert one.backends == {"flashinfer_fusion": 4}
    with pytest.raises(ValueError, match="counts/GEMM = -1: no count"):
        Profile.from_json(one.to_json() | {"counts": {"GEMM": -1}})


def test_the_late_rank_makes_its_peers_wait():
    one = profile(layers(late=50), layers(gap=50), layers(late=50))
    assert [each.waiting_us for each in one.ranks] == [200, 0, 200]
    assert [each.communication_us for each in one.ranks] == [320, 120, 320]
    assert [each.gaps_us for each in one.ranks] == [0, 150, 0]


SAID = {
    "one rank is missing": (
        lambda: profile(layers(), world_size=2), "1 of 2 ranks: what waits for whom is not known"),
    "ranks of different lengths": (
        lambda: profile_of([trace_of(0, 2, layers(), 3), trace_of(1, 2, layers(), 2)]),
        "the ranks have 2 to 3 passes: the first 2 of each count"),
    "a rank without such a pass": (
        lambda: profile(layers(4), layers(3)), "no graph pass of rank 1: its figures are left out"),
    "collectives without a peer": (
        lambda: profile(layers(), [each if each[0] != REDUCE else (GEMM, *each[1:]) for each in layers()]),
        "pass 1: the ranks' collectives are not the same (0 and 4): no waiting from it"),
    "another rank does something else": (
        lambda: profile(layers(copies=1), layers(copies=3)), "rank 1 is unlike rank 0: +8 copies"),
}


@pytest.mark.parametrize(("make", "line"), SAID.values(), ids=SAID)
def test_what_is_odd_is_said_in_a_line(make, line):
    one = make()
    assert line in one.notes
    if "waits" in line or "waiting" in line:
        assert one.waiting_us is None


def test_a_pass_unlike_the_others_is_not_exact():
    trace = trace_of(0, 1, layers(copies=1), 5)
    odd = next(number for number, each in enumerate(trace.kernels) if each.name == COPY and each.correlation == 3)
    lacking = replace(trace, kernels=trace.kernels[:odd] + trace.kernels[odd + 1 :])
    one = profile_of([lacking])
    assert not one.exact
    assert one.notes == ("rank 0 pass 3: -1 Memcpy DtoD (Device -> Device)",)
    assert one.counts["copy"] == 4, "the usual number"


def test_no_trace_and_two_of_one_rank_are_refused():
    with pytest.raises(ProfileError, match="no trace of the profile"):
        profile_of([])
    with pytest.raises(ProfileError, match="two of 2 traces are of one rank"):
        profile_of([trace_of(0, 1, layers())] * 2)


def test_a_kernel_of_no_length_and_one_on_top_of_another_are_counted_and_take_no_time_twice():
    one = profile([(GEMM, (0, 10), 7), (GEMM, (0, 10), 8), (GEMM, (5, 5), 7), (REDUCE, (2, 12), 9)])
    assert one.counts["GEMM"] == 3
    assert one.classes_us["GEMM"] == 10
    assert (one.communication_us, one.exposed_us, one.gaps_us) == (10, 2, 0)


def operators(rank, world_size, late):
    """A processor's step of 100 µs: operators one in the other, and a collective on a thread of gloo."""
    ran = [("aten::clone", 0, 20), ("aten::copy_", 5, 10), ("aten::linear", 20, 30), ("aten::mm", 25, 20)]
    return Trace(
        Path(f"rank{rank}"), rank, world_size, (), (), (Annotation("step[VERIFY bs=1]", 1000, 100, 1),),
        tuple(Kernel(name, 1000 + start, length, -1, 1) for name, start, length in ran),
        (Kernel("gloo:all_reduce", 1060 + late, 35 - late, -1, 2),),
    )


def test_an_operator_inside_another_counts_and_lasts_once():
    one = profile_of([operators(0, 2, late=0), operators(1, 2, late=25)])
    assert one.counts == {"all-reduce": 1, "GEMM": 1, "copy": 1, "other": 1}
    assert one.ranks[0].classes_us == {"all-reduce": 35, "GEMM": 30, "copy": 10, "other": 10}
    assert [(each.span_us, each.waiting_us, each.gaps_us) for each in one.ranks] == [(100, 25, 15), (100, 0, 40)]
    assert {each.name: each.count for each in one.kernels}["aten::mm"] == 1, "by name all are there"


BEFORE = profile(layers(61))


def test_a_slower_all_reduce_is_named_with_its_length():
    line = "communication 1.83 → 4.88 ms: all-reduce kernels 61 × 30 → 80 µs"
    assert attribution(BEFORE, profile(layers(61, reduce_us=80))) == line
    assert counts_line(BEFORE, profile(layers(61, reduce_us=80))) is None


def test_long_times_are_written_out():
    line = "communication 0.03 → 1234 ms: all-reduce kernels 1 × 30 → 1234000 µs"
    assert attribution(profile(layers(1)), profile(layers(1, reduce_us=1_234_000))) == line


def test_what_was_saved_is_named_too():
    line = "communication 4.88 → 1.83 ms: all-reduce kernels 61 × 80 → 30 µs"
    assert attribution(profile(layers(61, reduce_us=80)), profile(layers(61, copies=5))) == line


def test_more_copies_are_named_with_what_stayed():
    after = profile(layers(61, copies=1))
    assert counts_line(BEFORE, after) == "+61 copies, 61 all-reduces as before"
    rows = [str(each) for each in changed(BEFORE, after)]
    assert rows == ["copy kernels none → 61 × 1 µs", f"{COPY} none → 61 × 1 µs"]
    assert attribution(BEFORE, after) == "copy 0 → 61 µs: copy kernels none → 61 × 1 µs"


def test_rows_begin_with_what_costs_most():
    after = profile(layers(61, reduce_us=50, gemm_us=40, norms=0))
    assert [str(each) for each in changed(BEFORE, after)] == [
        "GEMM kernels 61 × 10 → 40 µs",
        f"{GEMM} 61 × 10 → 40 µs",
        "all-reduce kernels 61 × 30 → 50 µs",
        f"{REDUCE} 61 × 30 → 50 µs",
        "norm kernels 61 × 2 µs → none",
        f"{NORM} 61 × 2 µs → none",
    ]
    assert counts_line(BEFORE, after) == "-61 norms, 61 all-reduces as before"


def test_gaps_and_waiting_are_parts_of_their_own():
    assert attribution(BEFORE, profile(layers(61, gap=9))) == "gaps 0 → 540 µs"
    waiting = attribution(profile(layers(61), layers(61)), profile(layers(61, late=60), layers(61, gap=60)))
    line = "communication 1.83 → 3.66 ms: all-reduce kernels 61 × 30 → 60 µs, waiting for the slowest rank 0 → 1.83 ms"
    assert waiting == line


def test_equal_profiles_differ_in_nothing():
    assert changed(BEFORE, BEFORE) == ()
    assert attribution(BEFORE, BEFORE) is None
    assert counts_line(BEFORE, BEFORE) is None


def test_a_pass_of_another_kind_or_release_is_said():
    assert unlike(BEFORE, BEFORE) is None
    named = replace(BEFORE, kind="VERIFY", size=1)
    verify = "a VERIFY pass of batch size 1"
    assert unlike(named, replace(named, kind="DECODE")) == f"{verify} against a DECODE pass of batch size 1"
    assert unlike(BEFORE, named) == f"an unnamed graph of 183 kernels against {verify}"
    assert unlike(BEFORE, profile(layers(60))) is None, "graphs of other sizes are what is looked for"
