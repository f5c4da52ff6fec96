"""A rehearsed box: every deployment of the GPU box as the CPU takes it, what is left out told once, refusals by the
lines that the failure table knows."""

from __future__ import annotations

import tomllib

import pytest

from fixtures.deployments import load_box, render, resolve_model
from fixtures.deployments.effective import activities, is_active
from fixtures.deployments.loading import FOLDER
from fixtures.deployments.rehearsed import LIMIT, REFUSAL, rehearsed
from fixtures.errors import DeploymentError
from fixtures.serving.failure import Cause, diagnose, refusals

BOX, CPU = load_box("pcie_blackwell"), load_box("cpu")
NOW = rehearsed(BOX, CPU)
RELEASE = "0.5.23"
CAUSES = {
    "flashinfer_fusion": Cause.UNSUPPORTED_ARCHITECTURE,
    "flashinfer_fusion_eagle3": Cause.UNSUPPORTED_ARCHITECTURE,
    "custom_all_reduce": Cause.TOPOLOGY,
    "torch_symmetric_memory": Cause.UNSUPPORTED_ARCHITECTURE,
    "torch_symmetric_memory_eagle3": Cause.UNSUPPORTED_ARCHITECTURE,
    "expert_parallel": Cause.ASSERTION,
}


@pytest.mark.parametrize("name", BOX.deployments)
def test_every_deployment_is_one_that_the_cpu_serves(name: str) -> None:
    asked, served = BOX.deployments[name], NOW.deployments[name]
    for kept in ("name", "box", "workloads", "expects", "timed", "after", "extends", "description"):
        assert getattr(served, kept) == getattr(asked, kept)
    assert served.speculative == asked.speculative
    assert served.options["device"] == "cpu"
    assert {"attention_backend", "tensor_parallel", "memory_fraction"} <= served.options.keys()
    known = {option for each in CPU.deployments.values() for option in each.options} | {"trust_remote_code"}
    assert served.options.keys() <= known
    assert "cuda" not in " ".join(render(served.options, RELEASE))
    assert resolve_model(served.model, {}).is_dir()
    assert served.environment["SGLANG_PLATFORM"] == "sglang_cpu"
    assert served.environment.items() >= asked.environment.items()
    if "max_total_tokens" in asked.options:  # what the causal arms differ in
        assert served.options["max_total_tokens"] == asked.options["max_total_tokens"]
    assert {*served.evidence} == {*asked.evidence}


def test_the_night_is_the_box_s() -> None:
    assert list(NOW.deployments) == list(BOX.deployments)
    assert (NOW.headline, NOW.stacks, NOW.night.control) == (BOX.headline, BOX.stacks, BOX.night.control)
    assert (NOW.night.load_minutes, NOW.night.spread) == (BOX.night.load_minutes, BOX.night.spread)
    assert BOX.night.budget is None
    assert NOW.night.budget == LIMIT  # ends by itself
    assert NOW.needs.gpu_model is None
    rehearsal = NOW.rehearsal
    assert rehearsal is not None
    assert rehearsal.of is BOX
    # A start of the box, scaled, is as long as one of the CPU.
    assert BOX.night.load_minutes / 60 * rehearsal.hour_s == pytest.approx(60 * CPU.night.load_minutes)
    assert {each.rehearsal_hour_s for each in NOW.deployments.values()} == {rehearsal.hour_s}


def test_what_is_left_out_is_told_once_with_how_many_it_concerns() -> None:
    assert NOW.rehearsal is not None
    told = NOW.rehearsal.left_out
    heads = [line.partition(": ")[0] for line in told]
    assert len(set(told)) == len(told)
    for name, asked in BOX.deployments.items():
        served = NOW.deployments[name]
        for option, value in asked.options.items():
            assert (served.options.get(option) == value) or f"options.{option}" in heads
        assert all(f"paths.{path}" in heads for path in asked.evidence if path != "eagle3")
    of = f"of {len(BOX.deployments)} deployments"
    assert f"options.mscclpp: left out (2 {of})" in told
    assert f"paths.custom_all_reduce: refused, by the line that the box's file expects (1 {of})" in told
    assert "paths.eagle3" not in heads  # the CPU takes it, and shows it


@pytest.mark.parametrize("name", BOX.deployments)
def test_only_what_the_hardware_refuses_is_refused_and_by_a_line_that_is_known(name: str) -> None:
    served = NOW.deployments[name]
    assert (REFUSAL in served.environment) == (name in CAUSES)
    if name not in CAUSES:
        found = activities({k: v for k, v in served.evidence.items() if k != "eagle3"}, ["any line"], RELEASE)
        assert not found or is_active(found) is True
        return
    line = served.environment[REFUSAL]
    assert next(each.state for each in activities(served.evidence, [line], RELEASE)) == "refused"
    traceback = f'Traceback (most recent call last):\n  File "a.py", line 1, in load\n{line}\n'
    cause = diagnose(traceback, 1).cause if "Error: " in line else refusals([line])[0].cause
    assert cause is CAUSES[name]


def test_the_platform_reads_the_variable_that_is_set() -> None:
    assert pytest.importorskip("sglang_cpu.limits").REFUSAL_VARIABLE == REFUSAL


def test_a_box_that_needs_no_hardware_is_not_rehearsed() -> None:
    with pytest.raises(DeploymentError, match="--rehearse: box cpu runs on any machine: leave --rehearse out"):
        rehearsed(CPU, CPU)


def test_a_refusal_that_no_pattern_finds_is_refused(tmp_path) -> None:
    text = (FOLDER / "pcie_blackwell.toml").read_text()
    path = tmp_path / "pcie_blackwell.toml"
    path.write_text(text.replace("Device capability 12 not supported", "Device 12 is odd"))
    assert tomllib.loads(path.read_text())
    with pytest.raises(DeploymentError, match=r"torch_symmetric_memory.refusal: 'TorchSymm.*no pattern of refused"):
        load_box(path)
