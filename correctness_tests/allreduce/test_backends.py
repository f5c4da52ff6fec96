"""Does every all-reduce that runs here give the right sum: at the sizes that serving uses, at odd ones, and under
strain?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import psutil
import pytest

from fixtures.allreduce.availability import unavailable
from fixtures.allreduce.backends import ALL_SIZES, BACKENDS
from fixtures.allreduce.cases import (
    BATCH_BYTES,
    ONE_TOKEN_BYTES,
    PREFILL_BYTES,
    VERIFY_BYTES,
    Case,
    elements,
    odd_sizes,
)
from fixtures.allreduce.ranks import RankGroup
from fixtures.allreduce.results import CaseResult, complaint

pytestmark = pytest.mark.correctness

ROUNDING = ("normal", "normal-0.02", "absorb-chain", "absorb-tree")
REPETITIONS = {2: 1000, 4: 200, 8: 50}  # on few cores eight processes take tens of ms for one ring
BYTES_NEEDED_PER_BYTE = 24  # input, poison, masks, reference in float64, and what the backend gathers


def assert_right(results: Sequence[CaseResult]) -> None:
    text = complaint(results)
    assert not text, text


def taken(group: RankGroup, cases: Sequence[Case]) -> list[Case]:
    found = [case for case in cases if group.backend.takes(case, group.world_size)]
    if not found:
        least, most = group.backend.min_bytes_per_rank * group.world_size, group.backend.max_bytes
        pytest.skip(
            f"{group.backend.name} takes {', '.join(group.backend.dtypes)} of {least} to {most} bytes, "
            f"multiples of {group.backend.multiple_of}"
        )
    return found


def test_sizes_of_serving(group: RankGroup, calls: Iterator[int]) -> None:
    """One token, a verify of 3 and 4 tokens, batches to 4 MiB."""
    sizes = (ONE_TOKEN_BYTES, *VERIFY_BYTES, *BATCH_BYTES)
    cases = [Case(pattern, "bf16", elements(n, "bf16"), next(calls)) for n in sizes for pattern in ("exact", "normal")]
    cases += [Case("exact", dtype, elements(VERIFY_BYTES[0], dtype), next(calls)) for dtype in ("fp16", "fp32")]
    assert_right(group.run(taken(group, cases), timeout_s=120))


def test_odd_sizes_and_layouts(group: RankGroup, calls: Iterator[int]) -> None:
    """Nothing, one element, fewer than ranks, no multiple of 16 bytes; and buffers that are not 16-byte aligned."""
    layouts = itertools.cycle(("contiguous", "offset"))
    cases = [
        Case(pattern, dtype, n, next(calls), next(layouts))
        for dtype, pattern in zip(group.backend.dtypes, itertools.cycle(("exact", "normal")), strict=False)
        for n in odd_sizes(dtype, group.world_size)
    ]
    assert_right(group.run(taken(group, cases), timeout_s=120))


def test_error_is_within_the_derived_bound(
    group: RankGroup, calls: Iterator[int], record_property: Callable[[str, object], None]
) -> None:
    """And reaches 0.9 of it where a sum in fp32 is rounded once: a looser bound would let faults through."""
    cases = [Case(pattern, dtype, 1 << 16, next(calls)) for dtype in group.backend.dtypes for pattern in ROUNDING]
    results = group.run(taken(group, cases), timeout_s=120)
    assert_right(results)
    for dtype in group.backend.dtypes:
        tight = {r.case.pattern: r.tightness for r in results if r.case.dtype == dtype}
        record_property("all-reduce tightness", [f"{group.name}, {dtype}", tight])
        assert max(tight.values()) <= 1
        if group.backend.accumulation == "fp32" and dtype != "fp32":
            assert tight["normal"] >= 0.9, f"the bound is never reached: {tight}"


def test_back_to_back(group: RankGroup, calls: Iterator[int]) -> None:
    """Nothing between the calls: sizes grow, shrink and are odd, one rank comes late, inputs are overwritten at
    once."""
    sizes = [1 << k for k in range(0, 14, 2)]
    sizes = [*sizes, *reversed(sizes), 7168, 7168, 1, 4097, 7168 * 3, 513, 7168 * 3]
    cases = taken(group, [Case("exact", "bf16", n, next(calls)) for n in sizes])
    assert_right(group.run(cases, together=True))
    late = {group.world_size - 1: 0.002}
    again = [Case("exact", "bf16", case.numel, next(calls)) for case in cases]
    assert_right(group.run(again, together=True, late=late))


def test_no_false_alarm(group: RankGroup, calls: Iterator[int]) -> None:
    """Many repetitions of small all-reduces with new data each time."""
    count = REPETITIONS[group.world_size]
    patterns = itertools.cycle(("exact", *ROUNDING))
    dtypes = itertools.cycle(group.backend.dtypes)
    cases = [Case(next(patterns), next(dtypes), 8 * (1 + k % 61), next(calls)) for k in range(count)]
    cases = taken(group, cases)
    for start in range(0, len(cases), 100):
        assert_right(group.run(cases[start : start + 100], together=True, timeout_s=120))


def test_largest(group: RankGroup, calls: Iterator[int]) -> None:
    """Prefill's 64 MiB, or the most that the backend takes. On a CPU with more than two ranks 16 MiB: the check itself,
    which works out every rank's data, would take most of the time."""
    most = PREFILL_BYTES[1] if group.device == "cuda" or group.world_size == 2 else PREFILL_BYTES[0]
    nbytes = min(most, group.backend.max_bytes)
    need, free = nbytes * BYTES_NEEDED_PER_BYTE * group.world_size, psutil.virtual_memory().available
    if group.device == "cpu" and need > free:
        pytest.skip(f"needs about {need >> 20} MiB of memory, {free >> 20} are free")
    assert_right(group.run([Case("exact", "bf16", elements(nbytes, "bf16"), next(calls))], timeout_s=300))


def test_strided_input(group: RankGroup, calls: Iterator[int]) -> None:
    """Every second element of a buffer: right, refused on all ranks, or the silent trap that the backend is known
    for."""
    cases = taken(group, [Case("exact", dtype, 1024, next(calls), "strided") for dtype in group.backend.dtypes])
    results = group.run(cases)
    match group.backend.strided:
        case "right":
            assert_right(results)
        case "refused":
            assert all(r.refused for r in results), "a strided tensor was not refused"
        case "wrong":
            healed = [str(r.case) for r in results if not r.failures()]
            assert not healed, f"{group.backend.name} now handles strided tensors; declare it `right`: {healed}"
            assert all({"values", "memory outside"} <= set(r.failures()) for r in results)


@pytest.mark.parametrize("per_graph", [1, 2, 3, 4])
def test_captured_in_a_graph(graph_group: RankGroup, calls: Iterator[int], per_graph: int) -> None:
    """An odd and an even number of all-reduces in one graph, replayed with new inputs."""
    numel = elements(VERIFY_BYTES[0], "bf16")
    cases = [[Case("exact", "bf16", numel, next(calls)) for _ in range(per_graph)] for _ in range(3)]
    assert_right(graph_group.replay(cases))


@pytest.mark.parametrize("name", [b.name for b in BACKENDS.values() if "cuda" in b.devices])
def test_gpu_backend_is_among_those_tested(name: str) -> None:
    """Skipped with the hardware's reason where it cannot run; the other tests take it up by themselves where it can."""
    reasons = {size: unavailable(BACKENDS[name], "cuda", size) for size in ALL_SIZES}
    if all(reasons.values()):
        pytest.skip("; ".join(dict.fromkeys(str(r) for r in reasons.values())))
    assert None in reasons.values()
