"""Is each fault noticed, by the check that should notice it? A check that cannot fail is no check.

The table of faults and checks is in the run's summary: for each fault the share of calls in which a check raised it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from fault_table import COLUMNS, FAULT, JOIN, shares

from correctness_tests.allreduce.all_reduce_faults import FAULTS, planted
from fixtures.allreduce.backends import BACKENDS
from fixtures.allreduce.cases import Case, CaseResult
from fixtures.allreduce.ranks import Launchers, RankGroup
from fixtures.allreduce.series import SERIES, CaseMaker, decoding
from fixtures.allreduce.starting import RankHung

pytestmark = [pytest.mark.correctness, pytest.mark.xdist_group("allreduce-controls")]

RANKS = 4
CALLS = 12
NUMEL = 2048
StartGroup = Callable[[str, int], RankGroup]


@dataclass(frozen=True)
class Control:
    """A fault, a backend that carries it, and the least share of calls in which each check must see it.

    together: with nothing between the calls, which are checked afterwards.

    The shares are below the measured ones of 524,288 elements at p = 8 in proportion to what a few small calls can
    show; a share of 0 with `blind` asserts that a check cannot see the fault, which is why the other one is needed.
    """

    fault: str
    backend: str
    sees: dict[str, float]
    blind: tuple[str, ...] = ()
    together: bool = False
    diagnosis: str | None = None
    same_data: bool = False
    dtype: str = "bf16"

    def __str__(self) -> str:
        extra = ", same data again" if self.same_data else ""
        return f"{self.fault}{extra} in {self.backend}, {self.dtype}"


ALL = 1.0
OLD = ("exact", "normal", "normal-0.02", "absorb-chain")
"""Ordinary numbers: they do not show what becomes of the others."""
BOTH = {"exact": ALL, "normal": ALL, "normal-0.02": ALL}
CONTROLS = [
    *(
        Control(fault, backend, BOTH, diagnosis=diagnosis)
        for backend in ("one_shot", "ring")
        for fault, diagnosis in (
            ("dropped rank", "rank 1 is missing"),
            ("doubled rank", "rank 1 is counted twice"),
            ("stale buffer", "stale buffer: rank 1"),
            ("swapped chunks", "swapped"),
            ("stale 16 bytes", "stale output"),
            ("uninitialised output", None),
        )
    ),
    Control("no kernel launched", "one_shot", BOTH),
    Control("no kernel launched", "gloo", BOTH, diagnosis="no reduction"),
    Control("one element short of a rank", "one_shot", {"exact": ALL, "normal": 0.75}, diagnosis="rank 1 is missing"),
    Control("one element short of a rank", "ring", {"exact": ALL, "normal": 0.5}, diagnosis="rank 1 is missing"),
    Control("neighbour's element", "one_shot", {"exact": 0.75, "normal": 0.75}, diagnosis="neighbour"),
    Control("neighbour's element", "ring", {"exact": 0.75, "normal": 0.5}, diagnosis="neighbour"),
    Control(
        "wire accumulation", "one_shot", {"normal": ALL, "normal-0.02": ALL, "absorb-chain": ALL}, blind=("exact",)
    ),
    Control(
        "truncated output", "one_shot", {"normal": ALL, "normal-0.02": ALL}, blind=("exact",), diagnosis="truncated"
    ),
    Control("own rank first", "one_shot", {"ranks agree": 0.5}, blind=("exact", "normal", "normal-0.02"), dtype="fp32"),
    Control("missing final barrier", "shared_memory", {"exact": 0.5}, together=True),
    Control("slow reader", "shared_memory", {}, blind=tuple(COLUMNS), together=True),
    Control("input modified", "one_shot", {"input unchanged": ALL}, blind=("exact", "normal")),
    Control("input modified", "ring", {"input unchanged": ALL}, blind=("exact", "normal")),
    Control("written outside", "one_shot", {"memory outside": ALL}, blind=("exact", "normal")),
    Control("written outside", "gloo", {"memory outside": ALL}, blind=("exact", "normal")),
    Control("stale buffer", "one_shot", {}, blind=tuple(COLUMNS), same_data=True),
    Control("stale buffer of the first rank", "one_shot", BOTH, diagnosis="stale buffer: rank 0"),
    Control("stale buffer of the last rank", "one_shot", BOTH, diagnosis="stale buffer: rank 3"),
    *(
        Control(f"input of the {which} rank modified late", "one_shot", {"input unchanged": 0.9}, OLD, together=True)
        for which in ("first", "last")
    ),
    Control("reused output", "one_shot", {"exact": 0.9, "normal": 0.9}, together=True),
    Control("fp16 accumulation", "ring", {"wide": ALL, "special": ALL}, blind=OLD, diagnosis="through fp16"),
    Control("sent in fp16", "one_shot", {"wide": ALL, "special": ALL}, blind=OLD, diagnosis="through fp16"),
    Control("sent in fp16", "ring", {"wide": ALL, "special": ALL}, blind=OLD, diagnosis="through fp16"),
    Control("sent in scaled fp16", "one_shot", {"wide": ALL}, blind=OLD),
    *(
        Control("subnormals flushed", backend, {"wide": ALL}, OLD, diagnosis="subnormals", dtype=dtype)
        for backend, dtype in (("one_shot", "bf16"), ("ring", "fp32"), ("two_shot", "bf16"))
    ),
    *(
        Control(fault, backend, {"special": ALL}, OLD, diagnosis=diagnosis)
        for backend in ("one_shot", "gloo")
        for fault, diagnosis in (
            ("NaN swallowed", "a NaN is swallowed"),
            ("infinity saturated", "an infinity is saturated"),
            ("negative zero lost", "the sign of a zero"),
            ("positive zero negated", "the sign of a zero"),
        )
    ),
    Control("NaN swallowed by one rank", "one_shot", {"special": ALL, "ranks agree": 0.1}, OLD),
]


@dataclass(frozen=True)
class SeriesControl:
    """A fault that only a series of calls shows, a backend that carries it, the series that must see it, how many calls
    of it suffice, and how many ranks."""

    fault: str
    backend: str
    series: str
    calls: int | None = None
    ranks: int = RANKS

    def __str__(self) -> str:
        return f"{self.fault} in {self.backend}, {self.ranks} ranks"


SERIES_CONTROLS = [
    SeriesControl("stale once in 64", "one_shot", "decoding", 70),
    SeriesControl("stale once in 64", "shared_memory", "decoding", 70, ranks=8),
    SeriesControl("stale once in 500", "one_shot", "decoding", 510, ranks=2),
    SeriesControl("stale once in 500", "shared_memory", "decoding", 510),
    SeriesControl("call before last once in 64", "one_shot", "decoding", 70),
    SeriesControl("stale from call 100 on", "gloo", "decoding", 110),
    SeriesControl("two sizes in turn", "one_shot", "in turn"),
    SeriesControl("two sizes in turn", "ring", "in turn"),
    SeriesControl("odd tail", "one_shot", "odd"),
    SeriesControl("large tail", "two_shot", "largest"),
]


@pytest.fixture(scope="module")
def groups(launchers: Launchers) -> Iterator[Callable[..., RankGroup]]:
    started: dict[tuple[str, int], RankGroup] = {}

    def get(name: str, size: int = RANKS) -> RankGroup:
        if (name, size) not in started:
            started[name, size] = launchers.group(BACKENDS[name], size)
        return started[name, size]

    yield get
    for ranks in started.values():
        ranks.close()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: str(c).replace(" ", "_"))
def test_fault_is_seen(
    control: Control,
    groups: Callable[..., RankGroup],
    calls: Iterator[int],
    record_property: Callable[[str, object], None],
) -> None:
    same = next(calls)
    results = []
    for pattern in (*OLD, "special", "wide"):
        cases = [
            Case(pattern, control.dtype, NUMEL, same if control.same_data else next(calls)) for _ in range(CALLS + 1)
        ]
        # the first call has no call before it that could be stale
        results += groups(control.backend).run(cases, fault=planted(control.fault), together=control.together)[1:]
    row = shares(results)
    record_property(FAULT, [str(control), row])
    texts = [text for result in results for text in result.failures().values()]
    for check, share in control.sees.items():
        assert row[check] >= share, f"{control}: {check} saw {row[check]:.0%} of calls"
    for check in control.blind:
        assert not row.get(check), f"{control}: {check} was not expected to see it: {texts[:1]}"
    if control.diagnosis:
        assert any(control.diagnosis in text for text in texts), texts[:3]


@pytest.mark.parametrize("control", SERIES_CONTROLS, ids=lambda c: str(c).replace(" ", "_"))
def test_series_shows_the_fault(
    control: SeriesControl,
    groups: Callable[..., RankGroup],
    calls: Iterator[int],
    record_property: Callable[[str, object], None],
) -> None:
    """And the calls of other series, where ordinary numbers are summed at other sizes, do not."""
    group = groups(control.backend, control.ranks)
    maker = CaseMaker(group.backend, "cpu", control.ranks, calls)
    series = decoding(maker, control.calls) if control.series == "decoding" else SERIES[control.series](maker)
    row = {
        control.series: share(group.run_series(series, fault=planted(control.fault))),
        "exact": share(group.run_series(SERIES["growing"](maker), fault=planted(control.fault))),
    }
    record_property(FAULT, [str(control), row])
    assert row[control.series] > 0
    if "stale" in control.fault or "last" in control.fault:
        assert not row["exact"], "no two calls of it are alike, or too few"


def share(results: list[CaseResult]) -> float:
    return sum(bool(result.failures()) for result in results) / len(results)


def test_hang_ends_in_time_with_every_stack(
    start_group: StartGroup, calls: Iterator[int], record_property: Callable[[str, object], None]
) -> None:
    group = start_group("gloo", RANKS)
    pids = group.pids
    with pytest.raises(RankHung, match="no answer from rank 0, 1, 2, 3 in 2 s") as caught:
        group.run([Case("exact", "bf16", 64, next(calls))], fault=planted("rank hangs"), timeout_s=2)
    record_property(FAULT, ["rank hangs in gloo, bf16", {JOIN: 1.0}])
    assert set(caught.value.stacks) == set(range(RANKS))
    assert all("all_reduce" in stack for stack in caught.value.stacks.values()), caught.value.lines
    assert "all_reduce_fault_kinds.py" in caught.value.stacks[1], "the stack of the rank that hangs names the place"
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")], "ranks are left behind"


def test_every_fault_has_a_control() -> None:
    assert {c.fault for c in (*CONTROLS, *SERIES_CONTROLS)} | {"rank hangs"} == set(FAULTS)
