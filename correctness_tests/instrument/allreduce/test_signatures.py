"""Do the calls into SGLang and FlashInfer bind to the packages as installed? Their sources are read, nothing is
imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.allreduce import adapters, installed
from fixtures.allreduce.availability import Facts, unavailable
from fixtures.allreduce.backends import BACKENDS
from fixtures.allreduce.installed import InstalledCall, declared_entries, problems
from fixtures.deployments.stacks import gpu_stacks, sglang_release, stack

pytestmark = pytest.mark.correctness


def site_packages(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(next(iter(spec.submodule_search_locations))).parent


@pytest.mark.parametrize("package", ["sglang", "flashinfer"])
def test_calls_bind_to_the_installed_packages(package: str) -> None:
    found = problems(declared_entries(sglang_release(), package), site_packages(package))
    assert not found, "\n".join(found)


def test_adapters_call_installed_packages_through_entries_only() -> None:
    """An import of sglang or flashinfer in an adapter would be a call that no test binds."""
    for path in Path(next(iter(adapters.__path__))).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            outside = [n for n in names if n.partition(".")[0] in ("sglang", "flashinfer")]
            assert not outside, f"{path.name} imports {outside}"


def test_every_gpu_backend_declares_its_calls() -> None:
    for each in gpu_stacks():
        declared = declared_entries(stack(each).release)
        assert {e.module.partition(".")[0] for e in declared} == {"sglang", "flashinfer"}
        assert len(declared) >= 25
    assert len(declared_entries("0.5.23")) > len(declared_entries("0.5.10.post1"))


SOURCE = """
class Kernels:
    def __init__(self, group, device, *, size=1): ...
    def reduce(self, inp, *, out=None): ...
    def free(self, **options): ...
def make(world_size=-1, *, key): ...
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "kernels.py").write_text(SOURCE)
    (tmp_path / "engine" / "__init__.py").write_text("from .kernels import Kernels as Public\n")
    return tmp_path


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (InstalledCall("engine.kernels", "Kernels", ("group", "device")), ""),
        (InstalledCall("engine.kernels", "Kernels", ("group", "device", "size")), ""),
        (InstalledCall("engine", "Public.reduce", ("inp",)), ""),
        (InstalledCall("engine.kernels", "Kernels.free", ("anything",)), ""),
        (InstalledCall("engine.kernels", "Kernels", ("group",)), "parameter 'device' is required"),
        (InstalledCall("engine.kernels", "Kernels", ("group", "device", "sise")), "no parameter 'sise'"),
        (InstalledCall("engine.kernels", "Kernels.all_reduce", ("inp",)), "class Kernels has no all_reduce"),
        (InstalledCall("engine.kernels", "Kernel", ("group",)), "engine.kernels has no Kernel"),
        (InstalledCall("engine.kernel", "Kernels", ("group",)), "there is no module engine.kernel"),
        (InstalledCall("engine.kernels", "make", ()), "parameter 'key' is required"),
    ],
)
def test_renames_are_found(package: Path, entry: InstalledCall, expected: str) -> None:
    found = problems([entry], package)
    assert (expected in found[0]) if expected else not found


def test_an_entry_insists_on_what_it_declares() -> None:
    entry = InstalledCall("math", "gcd", ("a",))
    with pytest.raises(TypeError, match=r"math:gcd\(a\) is called with b"):
        entry(b=1)
    assert InstalledCall("types", "SimpleNamespace", ("a",))(a=1).a == 1
    assert installed.InstalledCall("builtins", "str.upper").on("x") == "X"


BLACKWELL = Facts(gpus=8, capability=(12, 0), name="RTX PRO 6000")
HOPPER = Facts(gpus=8, capability=(9, 0), name="H200", nvlink=True)


@pytest.mark.parametrize(
    ("name", "here", "size", "reason"),
    [
        ("nccl", Facts(), 2, "nccl at world size 2 needs as many GPUs; here: none"),
        ("nccl", Facts(gpus=4), 8, "here: 4"),
        ("sglang_custom_v2", BLACKWELL, 8, "needs NVLink between more than two GPUs"),
        ("sglang_custom_v2", BLACKWELL, 2, None),
        ("sglang_custom_v2", HOPPER, 8, None),
        ("sglang_torch_symmetric", BLACKWELL, 8, "needs compute capability 9.x or 10.x; here: RTX PRO 6000 with 12.0"),
        ("flashinfer_fusion", BLACKWELL, 8, "needs compute capability 9.x or 10.x"),
        ("flashinfer_fusion", HOPPER, 8, None),
        ("sglang_pcie_ipc", BLACKWELL, 8, None),
        ("sglang_quick", BLACKWELL, 8, "needs an AMD GPU; here: RTX PRO 6000"),
        ("sglang_mscclpp", BLACKWELL, 2, "sglang_mscclpp takes 4, 8 ranks, not 2"),
        ("gloo", BLACKWELL, 8, "gloo does not run on cuda"),
    ],
)
def test_reasons_are_the_hardwares(name: str, here: Facts, size: int, reason: str | None) -> None:
    found = unavailable(BACKENDS[name], "cuda", size, here)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_sglangs_coordinator_runs_on_the_cpu_only_where_no_gpu_is_visible() -> None:
    coordinator = replace(BACKENDS["sglang_coordinator"], preload=())  # whether SGLang is installed is another matter
    assert unavailable(coordinator, "cpu", 2, Facts()) is None
    reason = "sglang_coordinator takes a GPU where there is one; here: RTX PRO 6000"
    assert unavailable(coordinator, "cpu", 2, BLACKWELL) == reason
    assert unavailable(BACKENDS["gloo"], "cpu", 2, BLACKWELL) is None


@pytest.fixture
def older_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SGLang and FlashInfer as installed, but without PCIe-IPC, as in the CUDA 12.8 stack."""
    kept = Path("sglang", "srt", "distributed", "device_communicators")
    (tmp_path / kept).mkdir(parents=True)
    for file in (site_packages("sglang") / kept).glob("*.py"):
        if file.name != "pcie_ipc_ar.py":
            (tmp_path / kept / file.name).symlink_to(file)
    (tmp_path / "flashinfer" / "comm").mkdir(parents=True)
    for name in ("sglang/__init__.py", "flashinfer/__init__.py", "flashinfer/comm/__init__.py"):
        (tmp_path / name).write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("sglang", "flashinfer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("older_packages")
def test_what_the_installed_packages_lack_cannot_run() -> None:
    sglang = unavailable(BACKENDS["sglang_pcie_ipc"], "cuda", 8, BLACKWELL)
    flashinfer = unavailable(BACKENDS["flashinfer_pcie_ipc"], "cuda", 8, BLACKWELL)
    assert "sglang_pcie_ipc cannot run with the installed packages: " in str(sglang)
    assert str(sglang).endswith("there is no module sglang.srt.distributed.device_communicators.pcie_ipc_ar")
    assert str(flashinfer).endswith("flashinfer.comm has no PcieIpcAllReduceWorkspace")
    assert unavailable(BACKENDS["sglang_custom_v2"], "cuda", 2, BLACKWELL) is None


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda _: None)
    reason = unavailable(BACKENDS["sglang_custom_v2"], "cuda", 2, BLACKWELL)
    assert reason == "sglang_custom_v2 cannot run with the installed packages: sglang is not installed"


def test_backends_that_call_no_package_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda _: None)
    assert unavailable(BACKENDS["nccl"], "cuda", 8, BLACKWELL) is None
