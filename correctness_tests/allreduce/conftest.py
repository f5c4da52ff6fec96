"""Groups of rank processes, one for each (backend, device, world size) that this machine can run, shared by all tests
here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from fixtures.allreduce.availability import unavailable
from fixtures.allreduce.backends import ALL_SIZES, BACKENDS, Backend, Device
from fixtures.allreduce.fault_table import summary
from fixtures.allreduce.ranks import Launchers, RankGroup

Combination = tuple[str, Device, int]


def runnable() -> list[Combination]:
    return [
        (backend.name, device, size)
        for backend in BACKENDS.values()
        for device in backend.devices
        for size in ALL_SIZES
        if unavailable(backend, device, size) is None
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`group`: every combination that runs here; `graph_group`: those that SGLang captures in CUDA graphs.

    Tests of one backend stay on one xdist worker (`--dist loadgroup`).
    """
    for fixture in {"group", "graph_group"}.intersection(metafunc.fixturenames):
        params = [
            pytest.param(c, id=f"{c[0]}-{c[1]}-{c[2]}", marks=pytest.mark.xdist_group(f"allreduce-{c[0]}"))
            for c in runnable()
            if fixture == "group" or (c[1] == "cuda" and BACKENDS[c[0]].captured)
        ]
        none = pytest.param(None, id="none", marks=pytest.mark.skip("CUDA graphs need a GPU; here there is none"))
        metafunc.parametrize(fixture, params or [none], indirect=True, scope="session")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    lines = summary(p for report in reports for p in report.user_properties)
    if lines:
        terminalreporter.section("all-reduce backends")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def launchers() -> Iterator[Launchers]:
    with Launchers() as shared:
        yield shared


@pytest.fixture(scope="session")
def group(request: pytest.FixtureRequest, launchers: Launchers) -> Iterator[RankGroup]:
    name, device, size = request.param
    with launchers.group(BACKENDS[name], size, device) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def graph_group(request: pytest.FixtureRequest, launchers: Launchers) -> Iterator[RankGroup]:
    name, device, size = request.param
    with launchers.group(BACKENDS[name], size, device) as ranks:
        yield ranks


@pytest.fixture
def start_group(launchers: Launchers) -> Iterator[Callable[[str, int], RankGroup]]:
    """Starts a group for one test on the CPU, for tests that may leave it broken."""
    started: list[RankGroup] = []

    def start(name: str, size: int) -> RankGroup:
        backend: Backend = BACKENDS[name]
        reason = unavailable(backend, "cpu", size)
        if reason:
            pytest.skip(reason)
        started.append(launchers.group(backend, size, "cpu"))
        return started[-1]

    yield start
    for ranks in started:
        ranks.close()


@pytest.fixture(scope="session")
def calls() -> Iterator[int]:
    """Call numbers, never the same twice: every all-reduce has data of its own."""
    return itertools.count(1)
