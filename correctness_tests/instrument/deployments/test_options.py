"""Options by meaning as flags of each release, the error that names the release that can, and the one table."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from fixtures.deployments import load_boxes, not_expressible, render
from fixtures.deployments.command import render_environment, server_environment
from fixtures.deployments.deployment import Value
from fixtures.deployments.effective import Disagreement, differences, effective
from fixtures.deployments.loading import SCHEMA, schema
from fixtures.deployments.options import OPTIONS
from fixtures.errors import DeploymentError

RENDERED: list[tuple[str, Value, str, list[str]]] = [
    ("decode_graph_max_batch", 128, "0.5.6", ["--cuda-graph-max-bs", "128"]),
    ("decode_graph_max_batch", 128, "0.5.10.post1", ["--cuda-graph-max-bs", "128"]),
    ("decode_graph_max_batch", 128, "0.5.19", ["--cuda-graph-max-bs", "128"]),
    ("decode_graph_max_batch", 128, "0.5.20", ["--cuda-graph-max-bs-decode", "128"]),
    ("decode_graph_max_batch", 128, "0.5.23", ["--cuda-graph-max-bs-decode", "128"]),
    ("flashinfer_all_reduce_fusion", True, "0.5.10.post1", ["--enable-flashinfer-allreduce-fusion"]),
    ("flashinfer_all_reduce_fusion", True, "0.5.23", ["--flashinfer-allreduce-fusion-backend", "auto"]),
    ("flashinfer_all_reduce_fusion", False, "0.5.23", ["--enforce-disable-flashinfer-allreduce-fusion"]),
    ("flashinfer_all_reduce_fusion", False, "0.5.9", []),
    ("custom_all_reduce", False, "0.5.23", ["--disable-custom-all-reduce"]),
    ("custom_all_reduce", True, "0.5.23", []),
    ("attention_data_parallel", 8, "0.5.10.post1", ["--dp-size", "8", "--enable-dp-attention"]),
    ("attention_data_parallel", 8, "0.5.23", ["--attn-dp-size", "8"]),
    ("moe_all_to_all", "flashinfer", "0.5.10.post1", ["--moe-a2a-backend", "flashinfer"]),
    ("max_running_requests", 512, "0.5.23", ["--max-running-requests", "512"]),
    ("memory_fraction", 0.4, "0.5.23", ["--mem-fraction-static", "0.4"]),
    ("torch_symmetric_memory", True, "0.5.23", ["--enable-torch-symm-mem"]),
    ("mscclpp", False, "0.5.23", []),
    ("incremental_streaming", True, "0.5.6", ["--stream-output"]),
    ("incremental_streaming", True, "0.5.9", ["--stream-output"]),
    ("incremental_streaming", True, "0.5.10.post1", ["--incremental-streaming-output"]),
    ("incremental_streaming", True, "0.5.23", ["--incremental-streaming-output"]),
    ("incremental_streaming", False, "0.5.23", []),
    ("stream_interval", 1, "0.5.23", ["--stream-interval", "1"]),
    ("load_format", "auto", "0.5.6", ["--load-format", "auto"]),
    ("load_format", "fastsafetensors", "0.5.10.post1", ["--load-format", "fastsafetensors"]),
    ("load_format", "instanttensor", "0.5.23", ["--load-format", "instanttensor"]),
    ("loader_threads", 16, "0.5.10.post1",
     ["--model-loader-extra-config", '{"enable_multithread_load": true, "num_threads": 16}']),
    ("prefetch_threads", 4, "0.5.23",
     ["--weight-loader-prefetch-checkpoints", "--weight-loader-prefetch-num-threads", "4"]),
    ("map_weights", False, "0.5.10.post1", ["--weight-loader-disable-mmap"]),
    ("map_weights", True, "0.5.23", []),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "release", "flags"), RENDERED)
def test_an_option_in_a_release(option: str, value: Value, release: str, flags: list[str]) -> None:
    assert render({option: value}, release) == flags


def test_the_order_is_that_of_the_file() -> None:
    assert render({"tensor_parallel": 8, "device": "cuda"}, "0.5.23") == [
        "--tp-size",
        "8",
        "--device",
        "cuda",
    ]


def test_an_option_that_is_a_variable() -> None:
    options: dict[str, Value] = {"pcie_ipc_all_reduce": True, "tensor_parallel": 8}
    assert render(options, "0.5.23") == ["--tp-size", "8"]
    assert render_environment(options, "0.5.23") == {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}


@pytest.mark.parametrize(
    ("options", "release", "line"),
    [
        (
            {"pcie_ipc_all_reduce": True},
            "0.5.10.post1",
            r"option pcie_ipc_all_reduce = True: SGLang 0\.5\.10\.post1 cannot express it; "
            r"SGLang 0\.5\.22 and later can \(SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1\)",
        ),
        (
            {"decode_graph_max_batch": 128},
            "0.5.5",
            r"SGLang 0\.5\.6 to 0\.5\.19 can \(--cuda-graph-max-bs \{value\}\); SGLang 0\.5\.20 and later",
        ),
        ({"moe_all_to_all": "flashinfer"}, "0.5.8", r"SGLang 0\.5\.9 and later can"),
        ({"load_format": "instanttensor"}, "0.5.10.post1", r"SGLang 0\.5\.22 and later can"),
        ({"prefetch_threads": 4}, "0.5.10.post1", r"SGLang 0\.5\.11 and later can \(--weight-loader-prefetch"),
        ({"moe_all_to_all": "deepep"}, "0.5.23", r"no release can"),
        (
            {"max_runing_requests": 1},
            "0.5.23",
            r"unknown option 'max_runing_requests': did you mean 'max_running",
        ),
    ],
)
def test_what_cannot_be_expressed_is_one_line(options: dict[str, Value], release: str, line: str) -> None:
    for renderer in (render, render_environment):
        with pytest.raises(DeploymentError, match=line) as caught:
            renderer(options, release)
        assert "\n" not in str(caught.value)


def test_a_flag_that_exists_but_does_nothing_is_not_used() -> None:
    """0.5.21 would take the variable without a word and all-reduce over NCCL."""
    assert list(not_expressible({"pcie_ipc_all_reduce": True, "mscclpp": True}, "0.5.21")) == [
        "pcie_ipc_all_reduce"
    ]


def test_every_deployment_renders_for_the_newest_release() -> None:
    for box in load_boxes():
        for deployment in box.deployments.values():
            assert not_expressible(deployment.options, "0.5.23") == {}
            arguments = render(deployment.options, "0.5.23")
            flags = [argument for argument in arguments if argument.startswith("--")]
            assert len(flags) == len(set(flags))


def test_variables_of_options_join_those_of_the_deployment() -> None:
    gpu = next(box for box in load_boxes() if box.name == "pcie_blackwell")
    assert server_environment(gpu.deployment("pcie_ipc"), "0.5.23") == {
        "HF_HUB_OFFLINE": "1",
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1",
    }


def test_the_spellings_of_one_value_never_overlap() -> None:
    """Two spellings for one value and release would make the first in the table win by accident."""
    releases = [f"0.5.{minor}" for minor in range(6, 25)] + ["0.5.10.post1"]
    for option in OPTIONS.values():
        for release in releases:
            fitting = [spelling.when for spelling in option.spellings if spelling.covers(Version(release))]
            assert len(fitting) == len(set(fitting)), (option.name, release)


def test_one_table_makes_schema_command_line_and_readings() -> None:
    assert schema()["$defs"]["options"]["properties"] == {name: each.schema for name, each in OPTIONS.items()}
    assert effective({}, "0.5.23") == {}
    for option in OPTIONS.values():
        assert option.meaning.endswith("."), option.name
        assert option.spellings, option.name


def test_no_file_but_the_table_types_the_name_of_an_option() -> None:
    """The renderer, the check of the effective configuration and the schema know options from the table alone."""
    names = "|".join(OPTIONS)
    for path in (SCHEMA, *(SCHEMA.parent / f"{name}.py" for name in ("command", "effective", "validate"))):
        assert re.findall(rf'"({names})"', path.read_text(encoding="utf-8")) == [], path.name
    table = (SCHEMA.parent / "options.py").read_text(encoding="utf-8")
    defined = re.findall(r'(?:valued|switch|Option)\(\s*"([a-z_]+)"', table)
    assert sorted(defined) == sorted(OPTIONS), "an option is defined twice, or by another way than the table's"


@pytest.mark.parametrize(
    ("release", "key"),
    [
        ("0.5.9", "stream_output"),
        ("0.5.10.post1", "incremental_streaming_output"),
        ("0.5.23", "incremental_streaming_output"),
    ],
)
def test_a_server_that_streams_all_ids_so_far_is_not_the_one_asked_for(release: str, key: str) -> None:
    pinned: dict[str, Value] = {"incremental_streaming": True, "stream_interval": 1}
    info = {"version": release, "stream_interval": 1, key: True}
    assert differences(pinned, info, release) == []
    assert differences(pinned, info | {key: False}, release) == [
        Disagreement("incremental_streaming", True, False, "changed")
    ]
    assert differences(pinned, info | {"stream_interval": 8}, release)[0].option == "stream_interval"


@pytest.mark.parametrize("extra", ['{"enable_multithread_load": true, "num_threads": 16}', {"num_threads": 16}])
def test_how_weights_are_loaded_is_what_the_server_says(extra: object) -> None:
    wanted: dict[str, Value] = {"load_format": "auto", "loader_threads": 16, "prefetch_threads": 4, "map_weights": True}
    info = {
        "version": "0.5.23", "load_format": "auto", "model_loader_extra_config": extra,
        "weight_loader_prefetch_checkpoints": True, "weight_loader_prefetch_num_threads": 4,
        "weight_loader_disable_mmap": False,
    }  # fmt: skip
    assert differences(wanted, info, "0.5.23") == []
    for key, value, option in (
        ("load_format", "mistral", "load_format"),
        ("model_loader_extra_config", "{}", "loader_threads"),
        ("weight_loader_prefetch_checkpoints", False, "prefetch_threads"),
        ("weight_loader_disable_mmap", True, "map_weights"),
    ):
        assert [each.option for each in differences(wanted, info | {key: value}, "0.5.23")] == [option]
