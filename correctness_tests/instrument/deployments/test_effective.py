"""Requested against effective, on /server_info as the two releases give it; and the log as evidence."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.deployments.deployment import Evidence, Value
from fixtures.deployments.effective import (
    Activity,
    Disagreement,
    activities,
    contradictions,
    differences,
    effective,
    unproven,
)

OPTIONS: dict[str, Value] = {
    "device": "cuda",
    "tensor_parallel": 8,
    "attention_backend": "triton",
    "random_seed": 7,
    "max_running_requests": 512,
    "max_total_tokens": 65536,
    "memory_fraction": 0.83,
    "decode_graph_max_batch": 128,
    "custom_all_reduce": False,
    "flashinfer_all_reduce_fusion": False,
    "speculative_algorithm": "EAGLE3",
    "speculative_steps": 2,
    "speculative_top_k": 1,
    "speculative_draft_tokens": 3,
}

COMMON: dict[str, Any] = {
    "device": "cuda",
    "tp_size": 8,
    "attention_backend": "triton",
    "random_seed": 7,
    "max_running_requests": 512,
    "max_total_tokens": 65536,
    "max_total_num_tokens": 65536,
    "mem_fraction_static": 0.83,
    "disable_custom_all_reduce": True,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 2,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 3,
    "internal_states": [{"effective_max_running_requests_per_dp": 512}],
}

INFO: dict[str, dict[str, Any]] = {
    "0.5.10.post1": COMMON
    | {
        "version": "0.5.10.post1",
        "cuda_graph_max_bs": 128,
        "disable_cuda_graph": False,
        "enable_flashinfer_allreduce_fusion": False,
        "dp_size": 1,
        "enable_dp_attention": False,
    },
    "0.5.23": COMMON
    | {
        "version": "0.5.23",
        "cuda_graph_config": {
            "decode": {"backend": "full", "max_bs": 128},
            "prefill": {"backend": "disabled"},
        },
        "flashinfer_allreduce_fusion_backend": None,
        "attn_dp_size": 1,
    },
}
RELEASES = list(INFO)


@pytest.mark.parametrize("release", RELEASES)
def test_a_server_as_requested_has_no_difference(release: str) -> None:
    assert differences(OPTIONS, INFO[release], release) == []
    told = effective(INFO[release], release)
    assert {option: told[option] for option in OPTIONS} == OPTIONS


def only(found: list[Disagreement]) -> Disagreement:
    assert len(found) == 1, found
    return found[0]


def changed(release: str, options: dict[str, Value] | None = None, **info: Any) -> Disagreement:
    return only(differences(OPTIONS if options is None else options, INFO[release] | info, release))


@pytest.mark.parametrize("release", RELEASES)
class TestBehindOnesBack:
    def test_running_requests_reset_under_speculation(self, release: str) -> None:
        options = {key: value for key, value in OPTIONS.items() if key != "max_running_requests"}
        options["decode_graph_max_batch"] = 48
        found = changed(
            release,
            options,
            max_running_requests=48,
            internal_states=[{"effective_max_running_requests_per_dp": 48}],
        )
        assert (found.option, found.requested, found.effective, found.kind) == (
            "max_running_requests", None, 48, "not pinned",
        )  # fmt: skip
        assert "SGLang resets it to 48 under speculation" in str(found)

    def test_a_pool_smaller_than_the_pin(self, release: str) -> None:
        """The argument still says 512; only the scheduler's own figure tells."""
        found = changed(release, internal_states=[{"effective_max_running_requests_per_dp": 300}])
        assert str(found).startswith("max_running_requests: requested 512, effective 300 (the request pool")

    def test_graphs_clamped_by_the_running_requests(self, release: str) -> None:
        found = differences(
            OPTIONS,
            INFO[release] | {"internal_states": [{"effective_max_running_requests_per_dp": 48}]},
            release,
        )
        graph = only([each for each in found if each.option == "decode_graph_max_batch"])
        assert (graph.requested, graph.effective) == (128, 48)
        assert "captures stop at max_running_requests" in str(graph)

    def test_draft_tokens_adjusted(self, release: str) -> None:
        found = changed(release, OPTIONS | {"speculative_draft_tokens": 4})
        assert (found.option, found.requested, found.effective) == ("speculative_draft_tokens", 4, 3)
        assert "speculative_steps + 1" in str(found)

    def test_fewer_tokens_than_pinned(self, release: str) -> None:
        """`max_total_tokens` is what was asked for; `max_total_num_tokens` what there is."""
        found = changed(release, max_total_num_tokens=60000)
        assert (found.option, found.effective, found.kind) == ("max_total_tokens", 60000, "changed")

    def test_custom_all_reduce_back_on(self, release: str) -> None:
        found = changed(release, disable_custom_all_reduce=False)
        assert (found.option, found.requested, found.effective) == ("custom_all_reduce", False, True)

    def test_speculation_that_is_not_there(self, release: str) -> None:
        found = changed(release, speculative_algorithm=None)
        assert str(found) == "speculative_algorithm: requested 'EAGLE3', effective None"

    def test_another_release_answers(self, release: str) -> None:
        found = changed(release, version="0.5.22")
        assert (found.option, found.effective) == ("release", "0.5.22")
        assert contradictions([found]) == [found]

    def test_what_the_server_does_not_tell_is_not_taken_for_equal(self, release: str) -> None:
        info = {key: value for key, value in INFO[release].items() if key != "mem_fraction_static"}
        found = only(differences(OPTIONS, info, release))
        assert (found.option, found.kind) == ("memory_fraction", "not verifiable")
        assert "not verifiable" in str(found)
        assert contradictions([found]) == []

    def test_what_is_not_pinned_is_said(self, release: str) -> None:
        options = {
            key: value for key, value in OPTIONS.items() if key not in ("random_seed", "memory_fraction")
        }
        found = differences(options, INFO[release], release)
        assert [str(each) for each in found] == [
            "random_seed: not pinned, SGLang chose 7 (state it)",
            "memory_fraction: not pinned, SGLang chose 0.83 (state it)",
        ]
        assert contradictions(found) == found


def test_graphs_switched_off() -> None:
    off = {"cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 128}}}
    assert changed("0.5.23", **off).effective == 0
    assert changed("0.5.10.post1", disable_cuda_graph=True).effective == 0
    assert effective({"device": "cpu", "cuda_graph_config": {"decode": {"max_bs": 32}}}, "0.5.23") == {
        "device": "cpu",
        "decode_graph_max_batch": 0,
    }


def test_a_fusion_that_switched_itself_on() -> None:
    assert (
        changed("0.5.23", flashinfer_allreduce_fusion_backend="trtllm").option
        == "flashinfer_all_reduce_fusion"
    )
    assert changed("0.5.10.post1", enable_flashinfer_allreduce_fusion=True).effective is True


def test_attention_groups_share_the_running_requests() -> None:
    options = OPTIONS | {"attention_data_parallel": 8}
    each = {"internal_states": [{"effective_max_running_requests_per_dp": 64}]}
    for release, groups in (
        ("0.5.10.post1", {"dp_size": 8, "enable_dp_attention": True}),
        ("0.5.23", {"attn_dp_size": 8}),
    ):
        assert differences(options, INFO[release] | each | groups, release) == []


def test_a_variable_is_verifiable_only_where_the_server_tells_it() -> None:
    options = OPTIONS | {"pcie_ipc_all_reduce": True}
    assert only(differences(options, INFO["0.5.23"], "0.5.23")).kind == "not verifiable"
    states = [
        {"effective_max_running_requests_per_dp": 512, "env_vars": {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}}
    ]
    assert differences(options, INFO["0.5.23"] | {"internal_states": states}, "0.5.23") == []


def test_a_dtype_as_torch_writes_it_is_the_same() -> None:
    assert (
        differences(OPTIONS | {"dtype": "bfloat16"}, INFO["0.5.23"] | {"dtype": "torch.bfloat16"}, "0.5.23")
        == []
    )


# --- The log.

BOTH = Evidence(active=("workspace built",), refused=("workspace .* failed", "no pcie_ipc_comm"))
SILENT = Evidence(refused=("not supported",), silence="every refusal warns", silence_since="0.5.10")


def judged(evidence: Evidence, lines: list[str], release: str) -> Activity:
    return activities({"path": evidence}, lines, release)[0]


@pytest.mark.parametrize(
    ("evidence", "lines", "state", "line"),
    [
        (
            BOTH,
            ["x", "  FlashInfer PCIe-IPC workspace built (world=8)"],
            "active",
            "FlashInfer PCIe-IPC workspace",
        ),
        (
            BOTH,
            ["workspace built", "workspace (max_numel=4) failed: no"],
            "refused",
            "workspace (max_numel=4) fail",
        ),
        (BOTH, ["it has no pcie_ipc_comm"], "refused", "it has no pcie_ipc_comm"),
        (BOTH, ["ready"], "silent", "the log has no line like 'workspace built'"),
        (BOTH, [], "silent", "the log has no line like"),
        (Evidence(active=("one", "two")), ["one"], "silent", "the log has no line like 'two'"),
        (Evidence(active=("one", "two")), ["two", "one"], "active", "one"),
        (SILENT, ["ready"], "active", "no refusal in the log; every refusal warns"),
        (SILENT, ["capability 12 not supported"], "refused", "capability 12 not supported"),
        (SILENT, [], "unproven", "the log is empty"),
        (Evidence(refused=("no",)), ["ready"], "unproven", "the log says neither"),
    ],
)
def test_what_a_log_shows(evidence: Evidence, lines: list[str], state: str, line: str) -> None:
    found = judged(evidence, lines, "0.5.23")
    assert found.state == state
    assert found.line.startswith(line)


def test_silence_of_a_release_that_refuses_without_a_word_proves_nothing() -> None:
    assert judged(SILENT, ["ready"], "0.5.9").state == "unproven"


def test_silence_of_a_release_that_never_says_that_it_is_active_proves_nothing_either() -> None:
    spoken = Evidence(active=("communicator created",), refused=("unavailable",), active_since="0.5.23")
    for release, lines, state in (
        ("0.5.23", ["ready"], "silent"),
        ("0.5.10.post1", ["ready"], "unproven"),
        ("0.5.10.post1", ["it is unavailable"], "refused"),
        ("0.5.10.post1", ["communicator created"], "active"),
    ):
        assert judged(spoken, lines, release).state == state


def test_one_path_of_two_that_is_not_active_spoils_the_start() -> None:
    evidence = {"pcie_ipc": BOTH, "eagle3": Evidence(active=("type=.*Eagle3",))}
    log = "Load weight end. type=LlamaForCausalLMEagle3\nthis build has no pcie_ipc_comm; falling back\n"
    found = activities(evidence, log, "0.5.23")
    assert [each.state for each in found] == ["refused", "active"]
    assert unproven(found) == (
        Activity("pcie_ipc", "refused", "this build has no pcie_ipc_comm; falling back"),
    )
    assert "pcie_ipc is refused: this build" in str(found[0])
    assert activities({}, log, "0.5.23") == ()


def test_the_log_is_read_once_whatever_is_looked_for() -> None:
    evidence = {"nccl": Evidence(active=("nccl==",)), "pcie_ipc": BOTH, "silent": SILENT}
    lines = iter(["sglang is using nccl==2.30.7", "workspace built", "workspace built again"])
    found = activities(evidence, lines, "0.5.23")
    assert [each.state for each in found] == ["active"] * 3
    assert found[1].line == "workspace built", "the first line that says so"
