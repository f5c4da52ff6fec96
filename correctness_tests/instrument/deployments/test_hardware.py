"""Which box a machine is, and which stack an environment."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from fixtures.deployments import Box, Needs, load_boxes
from fixtures.deployments.__main__ import main
from fixtures.deployments.hardware import Gpu, Hardware, choose_box, detect, parse, shortfall
from fixtures.deployments.stacks import Installed, detect_stack, differences, load_stacks, stack
from fixtures.errors import DeploymentError

RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def smi(count: int, name: str = RTX, memory_mib: str = "97887") -> str:
    """As `nvidia-smi --query-gpu=index,uuid,name,memory.total` prints it."""
    return "".join(f"{i}, GPU-{i}{i}{i}a, {name}, {memory_mib}\n" for i in range(count))


def chosen(output: str, visible: str | None = None) -> tuple[str, str]:
    box, line = choose_box(load_boxes(), parse(output, visible))
    return box.name, line


def test_the_gpu_box_is_recognised() -> None:
    assert chosen(smi(8)) == ("pcie_blackwell", f"box pcie_blackwell: this machine has 8 x {RTX} 96 GiB")


@pytest.mark.parametrize(
    ("output", "visible", "reason"),
    [
        (smi(4), None, f"here: 4 x {RTX} 96 GiB"),
        (smi(8, name="NVIDIA H200"), None, "here: 8 x NVIDIA H200 96 GiB"),
        (smi(8, memory_mib="49140"), None, "here 8 have 48 GiB"),
        (smi(8), "0,1", f"here: 2 x {RTX} 96 GiB"),
        (smi(8), "", "here: no GPU (CUDA_VISIBLE_DEVICES='' leaves none)"),
        (smi(8), "-1", "leaves none"),
        (smi(8, memory_mib="[N/A]"), None, "here: no GPU (nvidia-smi lists none)"),
        ("", None, "here: no GPU (nvidia-smi lists none)"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\n", None, "no GPU"),
    ],
)
def test_a_machine_that_is_neither_gets_cpu_and_a_line(output: str, visible: str | None, reason: str) -> None:
    name, line = chosen(output, visible)
    assert name == "cpu"
    assert line.startswith("box cpu: pcie_blackwell needs 8 x RTX PRO 6000 Blackwell with 94 GiB; ")
    assert reason in line


def test_visible_devices_by_index_and_uuid() -> None:
    assert len(parse(smi(8), "0,1,2,3,4,5,6,7").gpus) == 8
    assert len(parse(smi(8), "GPU-111a,GPU-222a").gpus) == 2
    assert len(parse(smi(8), "0,9,1").gpus) == 1


def test_no_box_fits() -> None:
    gpu = [box for box in load_boxes() if box.name == "pcie_blackwell"]
    with pytest.raises(DeploymentError, match=r"no box fits this machine: pcie_blackwell needs 8 x .*--box"):
        choose_box(gpu, Hardware())


def test_a_gpu_too_many_is_no_shortfall() -> None:
    needs = Needs("RTX PRO 6000", 2, 90)
    assert shortfall(needs, Hardware((Gpu(RTX, 95.6),) * 3)) is None
    assert shortfall(Needs(), Hardware()) is None


def test_the_box_with_the_larger_needs_wins() -> None:
    box: Box = next(box for box in load_boxes() if box.name == "pcie_blackwell")
    half = replace(box, name="half", needs=replace(box.needs, gpu_count=4))
    assert choose_box([half, box], parse(smi(8)))[0].name == "pcie_blackwell"
    assert choose_box([half, box], parse(smi(4)))[0].name == "half"


def test_detection_never_raises() -> None:
    def failing() -> str:
        raise subprocess.CalledProcessError(9, ["nvidia-smi"])

    def hanging() -> str:
        raise subprocess.TimeoutExpired(["nvidia-smi"], 20)

    def missing() -> str:
        raise FileNotFoundError("nvidia-smi is not installed")

    assert "nvidia-smi failed" in detect(failing).note
    assert "timed out" in detect(hanging).note
    assert detect(missing).note == "nvidia-smi is not installed"
    assert len(detect(lambda: smi(8), {"CUDA_VISIBLE_DEVICES": "3"}).gpus) == 1
    assert len(detect(lambda: smi(8), {}).gpus) == 8


# --- Stacks.


def environment(name: str) -> Installed:
    """Software exactly as the stack pins it."""
    pinned = stack(name)
    everything: dict[str, str | None] = {
        key: None for each in load_stacks().values() for key in each.components
    }
    return Installed(everything | dict(pinned.components), pinned.torch_cuda, "3.11.9")


@pytest.mark.parametrize("name", ["cu128", "cu130"])
def test_an_environment_is_recognised_as_its_stack(name: str) -> None:
    found, wrong = detect_stack(["cu128", "cu130"], environment(name))
    assert (found.name, wrong) == (name, ())


def test_the_stacks_differ_in_more_than_cuda() -> None:
    named = {each.component for each in differences(stack("cu128"), environment("cu130"))}
    assert {"sglang", "torch", "torch.version.cuda", "nvidia-nccl-cu12", "flashinfer-python"} <= named


def test_a_local_build_of_the_pinned_version_is_the_pinned_version() -> None:
    built = environment("cu128")
    built = replace(built, components={**built.components, "torch": "2.9.1+cu128"})
    assert differences(stack("cu128"), built) == ()


def test_a_cpu_build_of_torch_is_named() -> None:
    """An index with `+cpu` builds outranks PyPI: the version looks right, its CUDA does not."""
    built = environment("cu130")
    built = replace(built, components={**built.components, "torch": "2.14.1+cpu"}, torch_cuda=None)
    assert [str(each) for each in differences(stack("cu130"), built)] == [
        "torch.version.cuda not installed (pinned 13.0)"
    ]


def test_the_nearest_stack_has_the_same_sglang() -> None:
    old = environment("cu128")
    old = replace(old, components={**environment("cu130").components, "sglang": "0.5.10.post1"})
    found, wrong = detect_stack(["cu128", "cu130"], old)
    assert found.name == "cu128"
    assert wrong


def test_an_old_python_is_named() -> None:
    assert str(differences(stack("cu130"), replace(environment("cu130"), python="3.10.4"))[0]) == (
        "python 3.10.4 (pinned 3.11 or later)"
    )


def test_no_sglang_at_all() -> None:
    bare = environment("cu130")
    bare = replace(bare, components={**bare.components, "sglang": None})
    with pytest.raises(DeploymentError, match="sglang is not installed"):
        detect_stack(["cu128"], bare)


def test_an_unknown_stack_lists_the_known() -> None:
    with pytest.raises(
        DeploymentError, match=r"unknown stack 'cu13x': did you mean .*known: cpu, cu128"
    ):
        stack("cu13x")


def test_the_command_that_asserts_a_stack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cu999"]) == 2
    assert "unknown stack 'cu999'" in capsys.readouterr().err
    assert main([]) == 2
    results = {name: main([name]) for name in ("cu128", "cu130")}
    assert sorted(results.values()) in ([0, 1], [1, 1])
    said = capsys.readouterr()
    assert ("this environment is not the stack" in said.err) or ("every pin as stated" in said.out)


def test_asking_for_the_stack_and_the_hardware_imports_no_torch() -> None:
    code = (
        "import sys; from fixtures.deployments import hardware, stacks;"
        "stacks.installed(); hardware.detect();"
        "assert not {'torch', 'sglang'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
