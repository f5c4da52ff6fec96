"""The fingerprint: the same twice, and different for what matters."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from fixtures.deployments import load_box, stacks
from fixtures.deployments.command import server_environment
from fixtures.deployments.options import PCIE_IPC_VARIABLE
from fixtures.records import environment
from fixtures.records.components import differing, effective_arguments, model_digest


def test_two_readings_agree():
    assert environment.fingerprint({"OMP_NUM_THREADS": "1"}) == environment.fingerprint({"OMP_NUM_THREADS": "1"})


def test_two_processes_agree():
    code = "import json; from fixtures.records.environment import fingerprint as f; "
    code += "print(json.dumps(f({}), sort_keys=True))"
    readings = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(readings) == 1


def test_what_the_server_is_started_with_counts(monkeypatch):
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    plain, tuned = environment.fingerprint({}), environment.fingerprint({"NCCL_ALGO": "Ring"})
    assert {key for key in tuned if tuned.get(key) != plain.get(key)} == {"$NCCL_ALGO"}


def test_a_folder_for_counters_does_not_count():
    assert "$SGLANG_PASS_COUNTERS" not in environment.fingerprint({"SGLANG_PASS_COUNTERS": "/somewhere"})


@pytest.fixture
def tactics(tmp_path, monkeypatch):
    """What FlashInfer leaves behind once PCIe-IPC has been tuned on this machine."""
    folder = tmp_path / ".cache" / "flashinfer" / "0.7.2" / "autotune"
    folder.mkdir(parents=True)
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
    monkeypatch.delenv(PCIE_IPC_VARIABLE, raising=False)
    return folder / "pcie_ipc_all_reduce_ws8.json"


def test_tuning_pcie_ipc_leaves_every_other_deployment_comparable(tactics):
    box = load_box("pcie_blackwell")
    plain, tuned = (server_environment(box.deployment(name), "0.5.23") for name in ("baseline_bs128", "pcie_ipc"))
    before, without = environment.fingerprint(plain), environment.fingerprint(tuned)
    tactics.write_text("{}")
    assert environment.fingerprint(plain) == before
    digest = {"pcie_ipc tactics": environment.file_digest(tactics)}
    assert environment.fingerprint(tuned) == without | digest
    assert without != without | digest


def test_a_baseline_from_before_pcie_ipc_was_tuned_still_compares(tactics):
    tactics.write_text("{}")
    found = environment.fingerprint({}) | {"machine": "a"}
    assert differing(found | {"pcie_ipc tactics": "absent"}, found) == []


@pytest.mark.parametrize(("value", "counts"), [("1", True), ("True", True), ("yes", True), ("0", False), ("", False)])
def test_pcie_ipc_is_switched_on_as_sglang_reads_its_variable(tactics, value, counts):
    found = environment.pcie_ipc_tactics({PCIE_IPC_VARIABLE: value})
    assert found == ({"pcie_ipc tactics": "absent"} if counts else {})


def test_gpus_come_from_nvidia_smi(tmp_path, monkeypatch):
    """A real nvidia-smi answer shape: eight cards, one driver, a topology without NVLink."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = topo ]; then printf "\\tGPU0\\tGPU1\\nGPU0\\t X \\tPHB\\nGPU1\\tPHB\\t X \\n\\nLegend:\\n"; else\n'
        'for i in 1 2 3 4 5 6 7 8; do echo "NVIDIA RTX PRO 6000 Blackwell, 97887 MiB, 590.48.01, 600.00 W"; done; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = environment.fingerprint({})
    assert found["gpu count"] == 8
    assert found["driver"] == "590.48.01"
    assert found["interconnect"].startswith("PHB ")
    assert "97887 MiB" in found["gpus"]


def test_a_broken_nvidia_smi_is_unknown_not_absent(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert environment.fingerprint({})["gpus"] == "unknown"


def test_effective_arguments_leave_out_what_differs_per_start():
    info = {
        "tp_size": 8,
        "port": 31000,
        "model_path": "/models/x",
        "weight_version": "nonce",
        "startup_time": 1.5,
        "cuda_graph_config": {"decode": {"max_bs": 128}},
        "internal_states": [{}],
        "nccl_port": 4,
        "dtype": "bfloat16",
        "max_total_num_tokens": 20000,
    }
    assert effective_arguments(info) == {
        "tp_size": 8,
        "dtype": "bfloat16",
        "cuda_graph_config": {"decode": {"max_bs": 128}},
    }


@pytest.mark.parametrize(
    "switch", ["enable_cache_report", "enable_request_time_stats_logging", "show_time_cost", "export_metrics_to_file"]
)
def test_a_switch_that_costs_time_counts_whatever_its_name(switch):
    """Each of them is work for a request or a pass, and its name has `port`, `time` or `file` in it."""
    assert effective_arguments({switch: True}) != effective_arguments({switch: False})


def test_another_checkpoint_has_another_digest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    before = model_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert model_digest(tmp_path) != before


def test_a_component_is_found_under_the_name_that_any_stack_pins(monkeypatch):
    """A new CUDA renames NCCL's distribution; the stack that pins it says so."""
    newer = dataclasses.replace(stacks.stack("cu130"), components={"nvidia-nccl-cu14": "3.0.1"})
    monkeypatch.setattr(stacks, "load_stacks", lambda: {"cu140": newer})
    monkeypatch.setattr(environment.metadata, "version", {"nvidia-nccl-cu14": "3.0.1"}.__getitem__)
    assert environment.installed_version(stacks.distributions(environment.OF_CUDA["nccl"])) == "3.0.1"


@pytest.fixture
def machine_ids(tmp_path, monkeypatch):
    files = tuple(tmp_path / name for name in ("systemd", "dbus", "product_uuid"))
    monkeypatch.setattr(environment, "MACHINE_IDS", files)
    return files


def test_a_container_without_a_machine_id_is_told_by_its_board(machine_ids):
    machine_ids[0].write_text("uninitialized\n")
    machine_ids[2].write_text("4c4c4544-0051\n")
    known = environment.machine_id()
    machine_ids[2].write_text("4c4c4544-0052\n")
    assert known != environment.machine_id()


def test_a_container_without_either_equals_itself(machine_ids, monkeypatch):
    """`unknown` would differ from itself, and every verdict would be lost after all the starts."""
    found = environment.fingerprint({})
    assert found["machine"].startswith("hw-")
    assert differing(found, environment.fingerprint({})) == []
    monkeypatch.setattr(environment, "_run", lambda *_: "GPU-1\nGPU-2\n")
    with_gpus = environment.machine_id()
    assert with_gpus != found["machine"]
    monkeypatch.setattr(environment, "_run", lambda *_: "GPU-2\nGPU-1\n")
    assert environment.machine_id() == with_gpus
