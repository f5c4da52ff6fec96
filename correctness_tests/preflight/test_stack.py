"""Is the installed software the stack it is taken for, and does it import?"""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys

import pytest
from installed_sources import package_root
from preflight_cases import BOXES, RELEASE, matching_stack

from fixtures.deployments import Box, not_expressible
from fixtures.deployments.stacks import differences, installed

pytestmark = [pytest.mark.preflight, pytest.mark.timeout(180), pytest.mark.xdist_group("preflight")]

# What the server and the paths under test import; none of them asks for a GPU at import.
MODULES = [
    "torch",
    "torch.distributed._symmetric_memory",
    "transformers",
    "triton",
    "flashinfer",
    "sglang.srt.server_args",
    "sglang.srt.distributed.device_communicators.torch_symm_mem",
    "sglang.srt.distributed.device_communicators.custom_all_reduce_utils",
]


@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.name)
def test_every_pinned_component_is_the_installed_one(box: Box) -> None:
    pinned = matching_stack(box)
    assert [str(difference) for difference in differences(pinned, installed())] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", MODULES)
def test_it_imports(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.skipif(
    bool(not_expressible({"pcie_ipc_all_reduce": True}, RELEASE)), reason=f"SGLang {RELEASE} has no PCIe-IPC all-reduce"
)
def test_flashinfer_has_the_pcie_ipc_workspace() -> None:
    """Without it SGLang falls back to NCCL with a warning only."""
    from flashinfer.comm import PcieIpcAllReduceWorkspace

    assert PcieIpcAllReduceWorkspace is not None


PLATFORM = """
import torch

torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda *_: "NVIDIA RTX PRO 6000 Blackwell"
from sglang.srt.platforms import current_platform

print(type(current_platform).__name__)
"""


@pytest.mark.skipif(
    not (package_root("sglang") / "srt" / "platforms").is_dir(), reason=f"SGLang {RELEASE} has no platform plugins"
)
@pytest.mark.parametrize(("named", "found"), [("", "CudaSRTPlatform"), ("sglang_cpu", "SglangCpuPlatform")])
def test_a_gpu_is_served_by_sglangs_own_platform(named: str, found: str) -> None:
    """SGLang takes an installed platform that answers without being named; that of `fixtures/sglang_cpu` must not."""
    environment = {key: value for key, value in os.environ.items() if key != "SGLANG_PLATFORM"}
    done = subprocess.run(
        [sys.executable, "-c", PLATFORM], env=environment | ({"SGLANG_PLATFORM": named} if named else {}),
        capture_output=True, text=True, timeout=150,
    )
    assert done.stdout.split()[-1:] == [found], done.stdout + done.stderr


def test_torch_was_built_for_the_cuda_of_the_stack() -> None:
    """The suite reads torch's version file; torch itself must say the same."""
    import torch

    assert torch.version.cuda == installed().torch_cuda
    assert {matching_stack(box).torch_cuda for box in BOXES} == {torch.version.cuda}


# --- Planted faults.


@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.name)
def test_another_version_of_any_component_is_caught(box: Box) -> None:
    pinned, found = matching_stack(box), installed()
    for component in pinned.components:
        for other in ("9.9.9", None):
            planted = dataclasses.replace(found, components={**found.components, component: other})
            wrong = differences(pinned, planted)
            assert [(each.component, each.installed) for each in wrong] == [(component, other)]


@pytest.mark.parametrize("box", BOXES, ids=lambda box: box.name)
def test_a_torch_for_another_cuda_is_caught(box: Box) -> None:
    planted = dataclasses.replace(installed(), torch_cuda=None)
    wrong = [str(each) for each in differences(matching_stack(box), planted)]
    assert wrong == [f"torch.version.cuda not installed (pinned {matching_stack(box).torch_cuda})"]
