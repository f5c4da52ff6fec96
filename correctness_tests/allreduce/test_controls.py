"""Is each fault noticed, by the check that should notice it? A check that cannot fail is no check.

The table of faults and checks is in the run's summary: for each fault the share of calls in which a check raised it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from fixtures.allreduce.cases import Case
from fixtures.allreduce.fault_table import COLUMNS, JOIN, shares
from fixtures.allreduce.ranks import Launchers, RankGroup, RankHung

pytestmark = [pytest.mark.correctness, pytest.mark.xdist_group("allreduce-controls")]

RANKS = 4
CALLS = 12
NUMEL = 2048
StartGroup = Callable[[str, int], RankGroup]


@dataclass(frozen=True)
class Control:
    """A fault, a backend that carries it, and the least share of calls in which each check must see it.

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
]


@pytest.fixture(scope="module")
def groups(launchers: Launchers) -> Iterator[Callable[[str], RankGroup]]:
    from fixtures.allreduce.backends import BACKENDS

    started: dict[str, RankGroup] = {}

    def get(name: str) -> RankGroup:
        if name not in started:
            started[name] = launchers.group(BACKENDS[name], RANKS)
        return started[name]

    yield get
    for ranks in started.values():
        ranks.close()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: str(c).replace(" ", "_"))
def test_fault_is_seen(
    control: Control,
    groups: Callable[[str], RankGroup],
    calls: Iterator[int],
    record_property: Callable[[str, object], None],
) -> None:
    same = next(calls)
    results = []
    for pattern in ("exact", "normal", "normal-0.02", "absorb-chain"):
        cases = [
            Case(pattern, control.dtype, NUMEL, same if control.same_data else next(calls)) for _ in range(CALLS + 1)
        ]
        # the first call has no call before it that could be stale
        results += groups(control.backend).run(cases, fault=control.fault, together=control.together)[1:]
    row = shares(results)
    record_property("all-reduce fault", [str(control), row])
    texts = [text for result in results for text in result.failures().values()]
    for check, share in control.sees.items():
        assert row[check] >= share, f"{control}: {check} saw {row[check]:.0%} of calls"
    for check in control.blind:
        assert not row.get(check), f"{control}: {check} was not expected to see it: {texts[:1]}"
    if control.diagnosis:
        assert any(control.diagnosis in text for text in texts), texts[:3]


def test_hang_ends_in_time_with_every_stack(
    start_group: StartGroup, calls: Iterator[int], record_property: Callable[[str, object], None]
) -> None:
    group = start_group("gloo", RANKS)
    pids = group.pids
    with pytest.raises(RankHung, match="no answer from rank 0, 1, 2, 3 in 2 s") as caught:
        group.run([Case("exact", "bf16", 64, next(calls))], fault="rank hangs", timeout_s=2)
    record_property("all-reduce fault", ["rank hangs in gloo, bf16", {JOIN: 1.0}])
    assert set(caught.value.stacks) == set(range(RANKS))
    assert all("all_reduce" in stack for stack in caught.value.stacks.values()), caught.value.lines
    assert "faults.py" in caught.value.stacks[1], "the stack of the rank that hangs names the place"
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")], "ranks are left behind"


def test_every_fault_has_a_control() -> None:
    from fixtures.allreduce.faults import FAULTS

    assert {c.fault for c in CONTROLS} | {"rank hangs"} == set(FAULTS)
