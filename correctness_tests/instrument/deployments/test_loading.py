"""Boxes from TOML: what they hold, what extends what, and one clear line for each way to be wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.deployments import changes, known_boxes, load_box, load_boxes, resolve_model
from fixtures.deployments.command import model_arguments
from fixtures.deployments.deployment import ChangedSetting
from fixtures.deployments.options import LOADING
from fixtures.deployments.stacks import load_stacks
from fixtures.errors import DeploymentError
from fixtures.serving.workloads import load_workload

GOOD = """
description = "a box"
stacks = ["cpu"]

[paths.nccl]
active = ["sglang is using nccl=="]

[deployments.plain]
description = "no speculation"
paths = ["nccl"]
model = "tiny_pair:target"
deadline_s = 60
workloads = ["single_stream"]

[deployments.plain.environment]
OMP_NUM_THREADS = "1"

[deployments.plain.options]
tensor_parallel = 1
max_running_requests = 48

[deployments.two]
description = "two ranks"
extends = "plain"

[deployments.two.options]
tensor_parallel = 2
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> Path:
        path = tmp_path / "box.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def refusal(write: Write, old: str, new: str) -> str:
    """The one line for the good file with one place changed."""
    assert GOOD.count(old) >= 1
    with pytest.raises(DeploymentError) as caught:
        load_box(write(GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- The boxes that ship.


def test_the_boxes_are_the_two_of_the_design() -> None:
    assert known_boxes() == ("cpu", "pcie_blackwell")
    assert set(load_box("cpu").deployments) == {"baseline", "eagle3", "tp2", "tp2_eagle3", "small_kv"}


def test_every_stack_and_workload_that_a_box_names_exists() -> None:
    for box in load_boxes():
        assert set(box.stacks) <= set(load_stacks())
        for deployment in box.deployments.values():
            for workload in deployment.workloads:
                assert load_workload(workload, size=box.name).name == workload


def test_every_arm_pins_what_sglang_would_choose() -> None:
    for box in load_boxes():
        graphs = box.needs.gpu_count > 0
        for deployment in box.deployments.values():
            assert {"random_seed", "max_running_requests", "tensor_parallel"} <= set(deployment.options)
            assert ("decode_graph_max_batch" in deployment.options) == graphs
            assert len({arm.options["max_running_requests"] for arm in box.deployments.values()}) == 1
            # SGLang captures no batch above the running requests' limit: a larger graph would not exist.
            largest = deployment.options.get("decode_graph_max_batch", 0)
            assert int(largest) <= int(deployment.options["max_running_requests"])


def test_no_arm_makes_nccl_log_each_collective() -> None:
    """Its control would not: of NCCL's subsystems, ENV alone is silent once the communicators are up."""
    arms = [arm for box in load_boxes() for arm in box.deployments.values() if "NCCL_DEBUG" in arm.environment]
    assert arms
    for arm in arms:
        assert arm.environment.get("NCCL_DEBUG_SUBSYS") == "ENV", arm.name


def test_an_eagle3_arm_differs_from_its_control_by_speculation_alone() -> None:
    cpu, gpu = load_box("cpu").deployments, load_box("pcie_blackwell").deployments
    stated = {"draft_model"} | {
        f"options.speculative_{part}" for part in ("algorithm", "steps", "top_k", "draft_tokens")
    }
    assert {change.key for change in changes(gpu["baseline_bs128"], gpu["eagle3"])} == stated
    for plain, eagle in (("baseline", "eagle3"), ("tp2", "tp2_eagle3")):
        differing = {change.key for change in changes(cpu[plain], cpu[eagle])}
        assert differing == stated | {"options.overlap_schedule"}


def test_the_causal_arms_are_a_full_two_by_two() -> None:
    arms = [d for d in load_box("pcie_blackwell").deployments.values() if d.name.startswith("causal_")]
    factors = [(d.options["decode_graph_max_batch"], d.options["max_total_tokens"]) for d in arms]
    graphs, tokens = {graph for graph, _ in factors}, {token for _, token in factors}
    assert graphs == {128, 512}
    assert len(tokens) == 2
    assert sorted(factors) == sorted((graph, token) for graph in graphs for token in tokens)
    for arm in arms[1:]:
        differing = {change.key for change in changes(arms[0], arm)}
        assert differing <= {"options.decode_graph_max_batch", "options.max_total_tokens"}


def test_every_approach_runs_alone_and_the_promising_ones_with_eagle3() -> None:
    names = set(load_box("pcie_blackwell").deployments)
    paying = {
        "flashinfer_fusion",
        "torch_symmetric_memory",
        "pcie_ipc",
        "nccl_symmetric_memory",
        "mscclpp",
        "nccl_ring_ll",
    }
    alone = paying | {"custom_all_reduce", "expert_parallel", "nccl_tree_ll", "deterministic"}
    assert alone | {f"{name}_eagle3" for name in paying} | {"deterministic_eagle3"} <= names


def test_ways_to_load_differ_from_the_baseline_in_that_alone_and_are_never_timed() -> None:
    gpu = load_box("pcie_blackwell").deployments
    ways = [each for each in gpu.values() if each.name.startswith("load_")]
    assert len(ways) >= 4
    loading = {f"options.{name}" for name in LOADING}
    for each in ways:
        assert not each.timed
        assert {change.key for change in changes(gpu["baseline_bs128"], each)} <= loading, each.name


def test_an_approach_says_how_it_is_proved() -> None:
    for box in load_boxes():
        for deployment in box.deployments.values():
            for evidence in deployment.evidence.values():
                assert evidence.active or evidence.silence
            assert ("eagle3" in deployment.evidence) == deployment.speculative


def test_every_arm_states_what_a_client_reads_for_each_token() -> None:
    for box in load_boxes():
        for deployment in box.deployments.values():
            stated = {name: deployment.options[name] for name in ("incremental_streaming", "stream_interval")}
            assert stated == {"incremental_streaming": True, "stream_interval": 1}, deployment.name


# --- Inheritance.


def test_what_is_not_stated_comes_from_what_is_extended(write: Write) -> None:
    two = load_box(write(GOOD)).deployment("two")
    assert two.options == {"tensor_parallel": 2, "max_running_requests": 48}
    assert two.environment == {"OMP_NUM_THREADS": "1"}
    assert (two.deadline_s, two.workloads, two.description) == (60.0, ("single_stream",), "two ranks")
    assert list(two.evidence) == ["nccl"]


def test_the_differences_of_two_arms_are_listed(write: Write) -> None:
    box = load_box(write(GOOD))
    found = changes(box.deployment("plain"), box.deployment("two"))
    assert found == (ChangedSetting("options.tensor_parallel", 1, 2),)
    assert str(found[0]) == "options.tensor_parallel: 1 -> 2"
    assert changes(box.deployment("two"), box.deployment("two")) == ()


# --- Bad input.


def test_an_unknown_box_lists_the_known() -> None:
    with pytest.raises(DeploymentError, match=r"unknown box 'cpuu': did you mean 'cpu'\? known: cpu, pcie"):
        load_box("cpuu")


def test_a_file_of_another_kind_is_no_box() -> None:
    with pytest.raises(DeploymentError, match="unknown box 'stacks'"):
        load_box("stacks")


def test_an_unknown_deployment_lists_the_known() -> None:
    known = "did you mean 'eagle3'[?] known: baseline, eagle3, small_kv, tp2, tp2_eagle3"
    with pytest.raises(DeploymentError, match=f"unknown deployment 'eagle' of box cpu: {known}"):
        load_box("cpu").deployment("eagle")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"nowhere\.toml: cannot be read"):
        load_box(tmp_path / "nowhere.toml")


def test_a_syntax_error_names_the_line(write: Write) -> None:
    assert "box.toml: not valid TOML: Invalid value (at line 12" in refusal(
        write, "deadline_s = 60", "deadline_s ="
    )


CASES = [
    (
        "deadline_s = 60",
        "deadlin_s = 60",
        r"box.toml:12: .*no key 'deadlin_s' \(= 60\); did you mean 'deadline_s'",
    ),
    (
        "max_running_requests = 48",
        "max_runing_requests = 48",
        r":20: .*did you mean 'max_running_requests'\?",
    ),
    ("tensor_parallel = 2", 'tensor_parallel = "2"', r":27: .*tensor_parallel = '2' is not a whole number"),
    ("tensor_parallel = 2", "tensor_parallel = true", r"tensor_parallel = True is not a whole number"),
    ("tensor_parallel = 2", "tensor_parallel = 0", r":27: .*tensor_parallel = 0 must be at least 1"),
    ("deadline_s = 60", "deadline_s = 0", r":12: .*deadline_s = 0 must be more than 0"),
    ('OMP_NUM_THREADS = "1"', "OMP_NUM_THREADS = 1", r":16: .*OMP_NUM_THREADS = 1 is not text in quotes"),
    ('workloads = ["single_stream"]', "workloads = []", r":13: .*workloads = \[\] is empty"),
    ('workloads = ["single_stream"]', 'workloads = "single_stream"', r":13: .*is not a list"),
    ("tensor_parallel = 2", 'device = "gpu"', r":27: .*device = 'gpu' is not possible; .*known: cpu, cuda"),
    ('model = "tiny_pair:target"', "", r":8: deployments.plain: has no model; state it"),
    ('stacks = ["cpu"]', "", r"'stacks' is a required property; add it"),
    ('extends = "plain"', 'extends = "plane"', r":24: .*unknown deployment 'plane': did you mean 'plain'\?"),
    ('extends = "plain"', 'extends = "two"', r":24: .*goes in a circle: two -> two"),
    ('paths = ["nccl"]', 'paths = ["ncl"]', r":10: .*unknown path 'ncl': did you mean 'nccl'\?"),
    (
        '["sglang is using nccl=="]',
        '["sglang (is using"]',
        r":6: paths.nccl.active: .*is no regular expression",
    ),
    ("[deployments.two]", "[deployments.Two-ranks]", r"name 'Two-ranks' in deployments: must match"),
    (
        "tensor_parallel = 2",
        'speculative_algorithm = "EAGLE3"',
        r"states only one of draft_model and options\.spec",
    ),
]


@pytest.mark.parametrize(("old", "new", "line"), CASES, ids=[new or f"no {old}" for old, new, _ in CASES])
def test_a_bad_file_is_one_line_with_file_key_value_and_fix(
    write: Write, old: str, new: str, line: str
) -> None:
    message = refusal(write, old, new)
    assert re.search(line, message), message


# --- Models.


def test_a_model_from_a_variable() -> None:
    with pytest.raises(DeploymentError, match="KIMI_K25_MODEL is not set; export KIMI_K25_MODEL=/path/to"):
        model_arguments(load_box("pcie_blackwell").deployment("eagle3"), {})


def test_a_model_that_is_not_there_names_file_key_and_fix(tmp_path: Path) -> None:
    deployment = load_box("pcie_blackwell").deployment("eagle3")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    environ = {"KIMI_K25_MODEL": str(tmp_path), "KIMI_K25_EAGLE3": str(tmp_path / "draft")}
    line = r"pcie_blackwell\.toml .*draft_model = '\$KIMI_K25_EAGLE3': no config\.json in .*draft; set KIMI"
    with pytest.raises(DeploymentError, match=line):
        model_arguments(deployment, environ)
    environ["KIMI_K25_EAGLE3"] = str(tmp_path)
    path = str(tmp_path)
    assert model_arguments(deployment, environ) == [
        "--model-path", path, "--speculative-draft-model-path", path
    ]  # fmt: skip


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert resolve_model(str(tmp_path), {}) == tmp_path
    with pytest.raises(DeploymentError, match=r"no config\.json"):
        resolve_model(str(tmp_path / "other"), {})


@pytest.mark.parametrize("named", ["~nobody-of-this-name/model", "m" * 300, "a\0b"])
@pytest.mark.parametrize("variable", [False, True])
def test_a_model_that_no_path_can_name_is_told_in_one_line(named: str, variable: bool) -> None:
    reference, environ = ("$MODEL", {"MODEL": named}) if variable else (named, {})
    with pytest.raises(DeploymentError, match="MODEL" if variable else "model = ") as caught:
        resolve_model(reference, environ)
    assert "\n" not in str(caught.value)
