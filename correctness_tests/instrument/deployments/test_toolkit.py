"""The toolkit that kernels are compiled with is found where SGLang and FlashInfer find it, and told apart."""

from __future__ import annotations

import pytest

from fixtures.deployments.hardware import nvcc, toolkit_refusal, toolkit_version
from fixtures.records import environment
from fixtures.records.components import differing


@pytest.fixture
def toolkits(tmp_path):
    """Folders of toolkits, each with an nvcc of its release; `mute` says none."""
    for name in ("12.6", "12.8", "13.0", "mute"):
        program = tmp_path / name / "bin" / "nvcc"
        program.parent.mkdir(parents=True)
        said = "no idea" if name == "mute" else f"Cuda compilation tools, release {name}, V{name}.1"
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
    return tmp_path


def test_cuda_home_hides_the_path_and_that_the_default(toolkits):
    path = {"PATH": str(toolkits / "12.8" / "bin")}
    default = toolkits / "12.6"
    assert toolkit_version({}, default) == "12.6"
    assert toolkit_version(path, default) == "12.8"
    assert toolkit_version(path | {"CUDA_PATH": str(toolkits / "13.0")}, default) == "13.0"
    assert toolkit_version({"CUDA_HOME": str(toolkits / "13.0")}, default) == "13.0"
    assert nvcc(path | {"CUDA_HOME": str(toolkits / "nothing")}, default) is None, "FlashInfer looks no further"
    assert toolkit_version({}, toolkits / "nothing") == "absent"


@pytest.mark.parametrize(
    ("home", "torch_cuda", "said"),
    [
        ("12.8", "12.8", None),
        ("13.0", "13.0", None),
        ("12.6", "12.8", "CUDA 12, 12.8 or later; .*12.6/bin/nvcc is of 12.6: set CUDA_HOME"),
        ("12.8", "13.0", "CUDA 13, 13.0 or later; .* is of 12.8"),
        ("13.0", "12.8", "CUDA 12, 12.8 or later; .* is of 13.0"),
        ("mute", "13.0", "CUDA_HOME=.*mute has one that does not say its version"),
        ("gone", "13.0", "CUDA_HOME=.*gone has none: install"),
    ],
)
def test_which_toolkit_is_needed(toolkits, home, torch_cuda, said):
    found = toolkit_refusal({"CUDA_HOME": str(toolkits / home)}, torch_cuda)
    if said is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(found)


def test_nothing_named_and_nothing_there(toolkits):
    default = toolkits / "nothing"
    assert f"PATH and {default} has none" in (toolkit_refusal({"PATH": ""}, "13.0", default) or "")


def test_records_of_another_toolkit_do_not_compare(toolkits, monkeypatch):
    monkeypatch.setattr(environment, "_gpus", lambda: {"gpus": "8 x some"})
    old, new = (environment.fingerprint({"CUDA_HOME": str(toolkits / name)}) for name in ("12.8", "13.0"))
    assert [str(each) for each in differing(old, new)] == ["cuda toolkit: 12.8 -> 13.0"]


def test_records_of_a_machine_without_a_gpu_compare_with_older_ones(monkeypatch):
    monkeypatch.setattr(environment, "_gpus", lambda: {"gpus": "none"})
    assert "cuda toolkit" not in environment.fingerprint({"CUDA_HOME": "/anywhere"})
