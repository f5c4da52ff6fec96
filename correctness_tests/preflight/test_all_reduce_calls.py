"""Do the calls into this stack's SGLang and FlashInfer bind? Their sources are read, nothing is imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from preflight_cases import RELEASE

from fixtures.allreduce.backends import ALL_SIZES, BACKENDS
from fixtures.allreduce.cases import Case
from fixtures.allreduce.installed import declared_entries, problems
from fixtures.deployments import not_expressible
from fixtures.deployments.stacks import load_stacks

pytestmark = [pytest.mark.preflight, pytest.mark.xdist_group("preflight")]


def packages(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed"
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).parent


@pytest.mark.parametrize("package", ["sglang", "flashinfer"])
def test_every_call_binds(package):
    entries = declared_entries(RELEASE, package)
    assert entries
    found = problems(entries, packages(package))
    assert not found, "\n".join(found)


def test_a_call_of_another_release_is_noticed():
    """What only some releases have must not bind to the others."""
    others = {call for each in load_stacks().values() for call in declared_entries(each.release, "sglang")}
    foreign = others - set(declared_entries(RELEASE, "sglang"))
    assert foreign
    assert problems(foreign, packages("sglang"))


@pytest.mark.skipif(
    bool(not_expressible({"pcie_ipc_all_reduce": True}, RELEASE)), reason=f"SGLang {RELEASE} has no PCIe-IPC all-reduce"
)
@pytest.mark.parametrize("name", ["sglang_pcie_ipc", "flashinfer_pcie_ipc"])
@pytest.mark.parametrize("size", ALL_SIZES)
def test_sizes_are_those_that_pcie_ipc_admits(name, size):
    """FlashInfer raises in the rank for any other."""
    from flashinfer.comm.pcie_ipc_policy import get_pcie_ipc_launch_config

    for numel in [*range(200), 7168, 7168 + 4, BACKENDS[name].max_bytes // 2]:
        admitted = get_pcie_ipc_launch_config(size, numel, 2, 64) is not None
        assert BACKENDS[name].takes(Case("exact", "bf16", numel, 0), size) == admitted, f"{numel} elements"
