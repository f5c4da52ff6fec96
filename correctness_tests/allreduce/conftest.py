"""Groups of rank processes, one for each (backend, device, world size) that this machine can run, shared by all tests
here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from fault_table import summary

from fixtures.allreduce.availability import runnable, unavailable
from fixtures.allreduce.backends import BACKENDS, Backend
from fixtures.allreduce.ranks import Launchers, RankGroup


def _serves(fixture: str, backend: str, device: str) -> bool:
    if fixture == "graph_group":
        return device == "cuda" and BACKENDS[backend].captured
    return fixture == "group" or BACKENDS[backend].fused_norm


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of one backend stay on one xdist worker (`--dist loadgroup`)."""
    if "kept" not in metafunc.fixturenames:
        return
    asked = next((f for f in ("graph_group", "fused_group") if f in metafunc.fixturenames), "group")
    params = [
        pytest.param(c, id=f"{c[0]}-{c[1]}-{c[2]}", marks=pytest.mark.xdist_group(f"allreduce-{c[0]}"))
        for c in runnable()
        if _serves(asked, c[0], c[1])
    ]
    none = pytest.param(None, id="none", marks=pytest.mark.skip("CUDA graphs need a GPU; here there is none"))
    metafunc.parametrize("kept", params or [none], indirect=True, scope="session")


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
def kept(request: pytest.FixtureRequest, launchers: Launchers) -> Iterator[RankGroup]:
    """The ranks of one combination, for all the tests that ask for it."""
    name, device, size = request.param
    with launchers.group(BACKENDS[name], size, device) as ranks:
        yield ranks


@pytest.fixture
def group(kept: RankGroup) -> RankGroup:
    """Every combination that runs here. Started again if the test before broke it: no outcome depends on another
    test."""
    kept.ensure()
    return kept


@pytest.fixture
def graph_group(group: RankGroup) -> RankGroup:
    """The combinations that SGLang captures in CUDA graphs."""
    return group


@pytest.fixture
def fused_group(group: RankGroup) -> RankGroup:
    """The combinations that also add the residual and apply RMSNorm."""
    return group


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
