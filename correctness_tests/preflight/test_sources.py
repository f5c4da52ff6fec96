"""Are the refusals of the campaign still in the installed sources, and the log lines that we look for?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import capability_gates
import pytest
from capability_gates import Gate, lacking, load_gates, locate
from installed_sources import Location, library_texts, matching_text, package_root, texts
from preflight_cases import DEPLOYMENTS, EXPRESSIBLE, RELEASE

from fixtures.errors import DeploymentError

pytestmark = [pytest.mark.preflight, pytest.mark.timeout(180), pytest.mark.xdist_group("preflight")]

GATES = [gate for gate in load_gates() if gate.covers(RELEASE)]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_the_gate_is_where_it_was(gate: Gate, record_property: Callable[[str, object], None]) -> None:
    place = locate(gate)
    record_property("location", str(place))
    print(f"{gate.name}: {gate.meaning}: {place}")
    assert place.file.is_file()


def test_every_gate_stops_a_path_that_a_deployment_tests() -> None:
    tested = {path for deployment in DEPLOYMENTS for path in deployment.evidence}
    stopped = {gate.path for gate in GATES if gate.path is not None}
    assert stopped <= tested


@cache
def messages() -> tuple[Location, ...]:
    """Every message that could be one of our lines, from SGLang, FlashInfer and NCCL as installed."""
    sglang, flashinfer = package_root("sglang") / "srt", package_root("flashinfer")
    files = [
        sglang / "server_args.py",
        sglang / "layers" / "flashinfer_comm_fusion.py",
        sglang / "layers" / "quantization" / "__init__.py",
        flashinfer / "compilation_context.py",
    ]
    for folder in ("distributed", "arg_groups", "model_executor"):
        files += sorted((sglang / folder).rglob("*.py"))
    library = next((package_root("nvidia") / "nccl" / "lib").glob("libnccl.so*"))
    said = [place for file in files if file.is_file() for place in texts(file)]
    return (*said, *library_texts(library, "set by environment to"))


def patterns() -> set[str]:
    return {
        pattern
        for deployment in EXPRESSIBLE
        for evidence in deployment.evidence.values()
        for pattern in (*evidence.active, *evidence.refused)
    }


def test_the_log_lines_that_count_as_evidence_are_what_the_sources_say() -> None:
    missing = {pattern for pattern in patterns() if matching_text(messages(), pattern) is None}
    assert missing == lacking(RELEASE).not_said & patterns()


# --- Planted faults.


def test_a_misspelt_line_is_caught() -> None:
    assert matching_text(messages(), "sglang is using ncl==") is None
    assert matching_text(messages(), "sglang is using nccl==") is not None


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_lifted_gate_is_caught(gate: Gate, tmp_path: Path) -> None:
    planted = tmp_path / gate.file
    planted.parent.mkdir(parents=True, exist_ok=True)
    with pytest.raises(DeploymentError, match="no file"):
        locate(gate, tmp_path)
    planted.write_text("allowed = [9, 10, 12]\n", encoding="utf-8")
    with pytest.raises(DeploymentError, match=rf"gate {gate.name} .*test the path again"):
        locate(gate, tmp_path)


@pytest.mark.parametrize("name", ["torch_symmetric_memory_sizes", "torch_symmetric_memory_multimem"])
def test_a_table_that_gained_an_architecture_is_caught(name: str, tmp_path: Path) -> None:
    gate = next(gate for gate in GATES if gate.name == name)
    original = locate(gate).file.read_text(encoding="utf-8")
    planted = tmp_path / gate.file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(
        original.replace("10: [", "12: [8], 10: [").replace("10: {", "12: {}, 10: {"), encoding="utf-8"
    )
    with pytest.raises(DeploymentError, match=r"12.* where \[9, 10\] was expected"):
        locate(gate, tmp_path)


def test_a_gate_that_states_no_way_to_find_it_is_caught() -> None:
    gate = dataclasses.replace(GATES[0], find={"line": 12})
    with pytest.raises(DeploymentError, match="states no way to find it"):
        locate(gate)


MISTAKES = {
    'not_expressible = "pcie_ipc_all_reduce"': (
        'not_expressible = ["pcie_ipc_all_reduce", "load_format", "prefetch_threads"]',
        r"gates\.toml:\d+: releases\.0\.5\.10\.post1\.not_expressible = .* is not a list",
    ),
    "": ('find = { code = "handle.multicast_ptr == 0" }', r"'find' is a required property"),
    'paths = "mscclpp"': ('path = "mscclpp"', r"no key 'paths' .*did you mean 'path'"),
}


@pytest.mark.parametrize("new", MISTAKES)
def test_a_mistake_in_the_gates_is_one_line(new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, line = MISTAKES[new]
    text = capability_gates.FILE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / capability_gates.FILE.name
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(capability_gates, "FILE", path)
    with pytest.raises(DeploymentError, match=line) as caught:
        capability_gates._document.__wrapped__()
    assert "\n" not in str(caught.value)
