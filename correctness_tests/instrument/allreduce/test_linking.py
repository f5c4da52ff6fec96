"""Is a backend that has to be linked with a library skipped where the linker would not find it?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.allreduce import availability
from fixtures.allreduce.availability import Facts, link_folders, linkable, unavailable
from fixtures.allreduce.backends import BACKENDS

pytestmark = pytest.mark.correctness

BLACKWELL = Facts(gpus=8, capability=(12, 0), name="RTX PRO 6000")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A folder as NCCL's wheel has it."""
    folder = tmp_path / "wheel"
    folder.mkdir()
    (folder / "libnccl.so.2").write_bytes(b"")
    return folder


def test_a_library_with_its_version_in_the_name_is_not_linked_with(wheel: Path, tmp_path: Path) -> None:
    assert not linkable("nccl", [wheel, tmp_path / "none"])
    (wheel / "libnccl.so").symlink_to("libnccl.so.2")
    assert linkable("nccl", [tmp_path / "none", wheel])
    assert not linkable("ncc", [wheel])


def test_a_static_library_will_do_and_a_dangling_link_will_not(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so").symlink_to("gone")
    assert not linkable("nccl", [tmp_path])
    (tmp_path / "libnccl.a").write_bytes(b"")
    assert linkable("nccl", [tmp_path])


def test_library_path_comes_before_cuda_and_the_system(tmp_path: Path) -> None:
    found = link_folders({"LIBRARY_PATH": f"{tmp_path}::/own", "CUDA_HOME": "/opt/cuda"})
    assert found[:3] == [tmp_path, Path("/own"), Path("/opt/cuda/lib64")]
    assert Path("/usr/lib/x86_64-linux-gnu") in found
    assert Path("/usr/local/cuda/lib64") in link_folders({"PATH": ""})


def test_cuda_is_where_its_compiler_is(tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("")
    nvcc.chmod(0o755)
    assert link_folders({"PATH": str(nvcc.parent)})[0] == tmp_path / "lib64"


def test_symmetric_memory_is_skipped_where_it_cannot_be_linked(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "link_folders", lambda _: [wheel])
    backend = BACKENDS["sglang_nccl_symmetric"]
    reason = unavailable(backend, "cuda", 8, BLACKWELL)
    assert reason is not None
    assert "sglang_nccl_symmetric is compiled against libnccl.so, which the linker would not find" in reason
    assert "libnccl-dev" in reason
    (wheel / "libnccl.so").symlink_to("libnccl.so.2")
    assert unavailable(backend, "cuda", 8, BLACKWELL) is None
