"""Does every all-reduce that runs here give the right sum: at the sizes that serving uses, at odd ones, and under
strain?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import psutil
import pytest

from fixtures.allreduce.availability import unavailable
from fixtures.allreduce.backends import ALL_SIZES, BACKENDS
from fixtures.allreduce.cases import VERIFY_BYTES, Case, CaseResult, complaint, elements
from fixtures.allreduce.ranks import RankGroup
from fixtures.allreduce.series import DECODING, SERIES, CallSeries, CaseMaker, decoding, varied

pytestmark = pytest.mark.correctness

BYTES_NEEDED_PER_BYTE = 24  # input, poison, masks, reference in float64, and what the backend gathers
REPETITIONS = {2: 1000, 4: 400, 8: 200}


def assert_right(results: Sequence[CaseResult]) -> None:
    text = complaint(results)
    assert not text, text


@pytest.fixture
def maker(group: RankGroup, calls: Iterator[int]) -> CaseMaker:
    return CaseMaker(group.backend, group.device, group.world_size, calls)


def done(group: RankGroup, series: CallSeries) -> list[CaseResult]:
    results = group.run_series(series)
    if not results:
        least, most = group.backend.min_bytes_per_rank * group.world_size, group.backend.max_bytes
        pytest.skip(
            f"{group.backend.name} takes {', '.join(group.backend.dtypes)} of {least} to {most} bytes, "
            f"multiples of {group.backend.multiple_of}"
        )
    return results


@pytest.mark.parametrize("name", [name for name in SERIES if name not in ("growing", "rounding", "largest")])
def test_series(group: RankGroup, maker: CaseMaker, name: str) -> None:
    """Each is described in `fixtures.allreduce.series`."""
    assert_right(done(group, SERIES[name](maker)))


def test_error_is_within_the_derived_bound(
    group: RankGroup, maker: CaseMaker, record_property: Callable[[str, object], None]
) -> None:
    """And reaches 0.9 of it where a sum in fp32 is rounded once: a looser bound would let faults through."""
    results = done(group, SERIES["rounding"](maker))
    assert_right(results)
    for dtype in group.backend.dtypes:
        tight = {r.case.pattern: r.tightness for r in results if r.case.dtype == dtype}
        record_property("all-reduce tightness", [f"{group.name}, {dtype}", tight])
        assert max(tight.values()) <= 1
        if group.backend.accumulation == "fp32" and dtype != "fp32":
            assert tight["normal"] >= 0.9, f"the bound is never reached: {tight}"


def test_growing_and_shrinking_with_and_without_a_late_rank(group: RankGroup, maker: CaseMaker) -> None:
    assert_right(done(group, replace(SERIES["growing"](maker), late={})))
    assert_right(done(group, SERIES["growing"](maker)))


def test_largest(group: RankGroup, maker: CaseMaker) -> None:
    series = SERIES["largest"](maker)
    need = series.cases[0].nbytes * BYTES_NEEDED_PER_BYTE * group.world_size
    free = psutil.virtual_memory().available
    if group.device == "cpu" and need > free:
        pytest.skip(f"needs about {need >> 20} MiB of memory, {free >> 20} are free")
    assert_right(group.run_series(series, timeout_s=300))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_false_alarm_in_many_repetitions(group: RankGroup, maker: CaseMaker) -> None:
    """A whole series of decoding at any number of ranks, and everything else many times."""
    assert_right(done(group, decoding(maker, DECODING)))
    for _ in range(REPETITIONS[group.world_size] // 40):
        assert_right(done(group, varied(maker)))
        assert_right(done(group, SERIES["special"](maker)))


def test_strided_input(group: RankGroup, maker: CaseMaker) -> None:
    """Every second element of a buffer: right, refused on all ranks, or the silent trap that the backend is known
    for."""
    results = done(group, CallSeries([maker.case("exact", dtype, 1024, "strided") for dtype in group.backend.dtypes]))
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
    """An odd and an even number of all-reduces in one graph, replayed with new inputs; one of them as often as a graph
    of decoding is."""
    numel = elements(VERIFY_BYTES[0], "bf16")
    rounds = DECODING // 2 if per_graph == 1 else 3
    cases = [[Case("exact", "bf16", numel, next(calls)) for _ in range(per_graph)] for _ in range(rounds)]
    assert_right(graph_group.replay(cases, timeout_s=300))


@pytest.mark.parametrize("name", [b.name for b in BACKENDS.values() if "cuda" in b.devices])
def test_gpu_backend_is_among_those_tested(name: str) -> None:
    """Skipped with the hardware's reason where it cannot run; the other tests take it up by themselves where it can."""
    reasons = {size: unavailable(BACKENDS[name], "cuda", size) for size in ALL_SIZES}
    if all(reasons.values()):
        pytest.skip("; ".join(dict.fromkeys(str(r) for r in reasons.values())))
    assert None in reasons.values()
