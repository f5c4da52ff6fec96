"""How long does one all-reduce take, by backend and size, at the sizes that serving uses?

The ranks time themselves: a round is `CALLS` calls back to back after a barrier, the figure is the slowest rank's time
per call, and pytest-benchmark is given that clock instead of its own, so that talking to the ranks is not measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from fixtures.allreduce.availability import facts, runnable
from fixtures.allreduce.backends import BACKENDS
from fixtures.allreduce.cases import BATCH_BYTES, ONE_TOKEN_BYTES, VERIFY_BYTES, elements
from fixtures.allreduce.latency import bus_bandwidth, latency_metrics
from fixtures.allreduce.ranks import Launchers, RankGroup

pytestmark = pytest.mark.perf

SIZES = (ONE_TOKEN_BYTES, *VERIFY_BYTES, *BATCH_BYTES)
ROUNDS = 20
CALLS = 10


class RankClock:
    """Seconds, as the ranks count them: moves only when a round has been timed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = RankClock()


def combinations() -> list[object]:
    """One rank for each GPU or core, as many as there are: more would measure the scheduler."""
    room = {"cpu": os.cpu_count() or 1, "cuda": facts().gpus}
    fitting = [c for c in runnable() if c[2] <= room[c[1]]]
    widest = {device: max(c[2] for c in fitting if c[1] == device) for device in {c[1] for c in fitting}}
    found = []
    for name, device, size in fitting:
        if size != widest[device]:
            continue
        modes = ("eager", "graph") if device == "cuda" and BACKENDS[name].captured else ("eager",)
        found += [pytest.param((name, device, size), mode, id=f"{name}-{device}-{size}-{mode}") for mode in modes]
    return found


@pytest.fixture(scope="module")
def launchers() -> Iterator[Launchers]:
    with Launchers() as shared:
        yield shared


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest, launchers: Launchers) -> Iterator[RankGroup]:
    name, device, size = request.param
    with launchers.group(BACKENDS[name], size, device) as ranks:
        yield ranks


@pytest.mark.parametrize(("group", "mode"), combinations(), indirect=["group"])
@pytest.mark.parametrize("nbytes", SIZES, ids=lambda n: f"{n >> 10}KiB")
@pytest.mark.benchmark(timer=CLOCK, group="all-reduce")
def test_all_reduce_latency(
    group: RankGroup, mode: str, nbytes: int, benchmark, record_property: Callable[[str, object], None]
) -> None:
    if nbytes > group.backend.max_bytes:
        pytest.skip(f"{group.backend.name} takes at most {group.backend.max_bytes} bytes")
    numel = elements(nbytes, "bf16")
    group.time("bf16", numel, rounds=2, calls=CALLS, graph=mode == "graph")  # warm-up
    seconds = group.time("bf16", numel, rounds=ROUNDS, calls=CALLS, graph=mode == "graph")
    told = iter(seconds)

    def one_round() -> None:
        CLOCK.now += next(told)

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    metrics = latency_metrics(group.backend.name, nbytes, group.world_size, seconds, mode)
    benchmark.extra_info["metrics"] = [metric.to_json() for metric in metrics]
    benchmark.extra_info["bus_bandwidth_gb_s"] = bus_bandwidth(nbytes, metrics[0].value * 1e-6, group.world_size) / 1e9
    record_property("metrics", benchmark.extra_info["metrics"])
    assert all(metric.usable for metric in metrics)
