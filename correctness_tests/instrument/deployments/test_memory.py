"""What is left for the KV cache, by the shapes of a checkpoint and the deployment's options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.deployments import load_box, requirements
from fixtures.deployments.hardware import Gpu, Hardware
from fixtures.deployments.memory import GIB, Checkpoint, gpu_memory, kv_bytes, read_checkpoint
from fixtures.deployments.requirements import unmet
from fixtures.deployments.stacks import stack
from fixtures.errors import DeploymentError

TINY_PAIR = Path(__file__).parents[3] / "fixtures" / "tiny_pair"
MODELS = Path(__file__).parent / "models"
KIMI, DRAFT = read_checkpoint(MODELS / "kimi_k25"), read_checkpoint(MODELS / "kimi_k25_eagle3")
BOX = load_box("pcie_blackwell")
TOTAL_GIB = 97887 / 1024
EIGHT = Hardware((Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", TOTAL_GIB),) * 8)


def memory(name, gib=TOTAL_GIB, **options):
    deployment = BOX.deployment(name)
    changed = replace(deployment, options={**deployment.options, **options})
    found = gpu_memory(changed, KIMI, DRAFT if deployment.speculative else None, gib, True)
    assert found is not None
    return found


def test_a_token_of_an_mla_model_is_its_latent_on_every_rank():
    assert kv_bytes(KIMI.config, 1) == kv_bytes(KIMI.config, 8) == (512 + 64) * 61 * 2
    assert kv_bytes(KIMI.config, 8, "fp8_e4m3") == (512 + 64) * 61


def test_a_token_of_the_tiny_pair_is_what_its_server_allocates():
    """The log of a server of the cpu box: 20,000 tokens, K and V 0.03 GB each."""
    config = read_checkpoint(TINY_PAIR / "target").config
    assert kv_bytes(config, 1) == 2 * 2 * 32 * 12 * 2
    assert kv_bytes(config, 2) == kv_bytes(config, 1) / 2
    assert kv_bytes(config, 4) == kv_bytes(config, 2), "two heads are not shared by four ranks"
    assert round(20_000 * kv_bytes(config, 1) / 2 / GIB, 2) == 0.03


def test_the_weights_of_the_tiny_pair_are_its_file():
    found = read_checkpoint(TINY_PAIR / "target")
    assert found.nbytes == (TINY_PAIR / "target" / "model.safetensors").stat().st_size


def test_the_weights_of_kimi_on_eight():
    """595 GB: experts and attention shared by eight, latent projections, gates and vision tower on each."""
    shared, whole = memory("baseline_bs128"), memory("expert_parallel")
    assert KIMI.nbytes / 8 < shared.weights < KIMI.nbytes / 8 + 4 * GIB
    attention, embedding = 2 * 61 * (1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168), 2 * 163840 * 7168
    absorbed = 2 * 61 * 512 * 64 * 256
    assert whole.weights - shared.weights == pytest.approx((attention + embedding + absorbed) * 7 / 8)


@pytest.mark.parametrize("name", BOX.deployments)
def test_every_deployment_of_the_box_fits(name):
    found = memory(name)
    assert found.refusal() is None
    assert found.tokens > 32 * 512, "concurrency_32 would wait for memory"
    assert found.left > 2 * GIB


def test_the_causal_arms_differ_by_what_the_graphs_free_and_fit_beside_either():
    arms = (BOX.deployment(f"causal_bs512_{size}_kv") for size in ("small", "large"))
    small, large = (arm.options["max_total_tokens"] for arm in arms)
    freed = memory("baseline_bs512").graphs - memory("baseline_bs128").graphs
    assert freed == 768 * 2**20
    assert (large - small) * kv_bytes(KIMI.config, 8) == pytest.approx(freed, rel=0.05)
    for graph in ("512", "128"):
        assert memory(f"causal_bs{graph}_large_kv").tokens > 2 * large, "good to a GiB"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"memory_fraction": 0.76}, "memory_fraction 0.76 of 93.09 GiB less weights .*, 0 tokens .*; 1 are needed"),
        ({"max_total_tokens": 120_000}, r"leaves 5\.\d\d GiB for the KV cache, 8\d{4} tokens .*; 120000 are needed"),
        ({"memory_fraction": 0.98}, r"leaves 1\.86 GiB for CUDA graphs of 2\.50 GiB: lower options"),
    ],
)
def test_what_cannot_fit_is_told_with_its_figures(changed, said):
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(memory("baseline_bs512", **changed).refusal())


def test_the_fraction_that_sglang_takes_does_not_hold_what_the_arms_pinned():
    """0.833 by its rule, less a twentieth twice for images."""
    assert memory("baseline_bs512", memory_fraction=0.791, max_total_tokens=65536).refusal()


def test_a_configuration_without_a_shape_is_not_reckoned():
    assert gpu_memory(BOX.deployment("eagle3"), Checkpoint({"hidden_size": 8}, 10), None, 90, True) is None


@pytest.fixture
def machine(tmp_path):
    """Variables of a machine with the models and a toolkit that says its release."""
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    return {
        "KIMI_K25_MODEL": str(MODELS / "kimi_k25"), "KIMI_K25_EAGLE3": str(MODELS / "kimi_k25_eagle3"),
        "CUDA_HOME": str(tmp_path / "cuda"),
    }


def test_a_machine_that_has_all_lets_every_deployment_start(machine, monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: name)
    assert {unmet(each, BOX, stack("cu130"), EIGHT, machine) for each in BOX.deployments.values()} == {None}


def test_a_load_format_whose_package_is_missing_is_told_before_the_first_start(machine, monkeypatch):
    """SGLang imports it once it begins to load."""
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    said = {each.name: unmet(each, BOX, stack("cu130"), EIGHT, machine) for each in BOX.deployments.values()}
    refused = {name: line for name, line in said.items() if line}
    assert set(refused) == {"load_fastsafetensors", "load_instanttensor"}
    assert "load_format = 'instanttensor' needs a package that is not installed; pip install 'instanttensor" in (
        refused["load_instanttensor"]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"load_format": "fastsafetensors", "loader_threads": 4}, "loader_threads = 4 has no effect with load_format"),
        ({"map_weights": False, "prefetch_threads": 2}, "prefetch_threads = 2 has no effect with map_weights = false"),
        ({"map_weights": False, "loader_threads": 2}, None),
        ({"loader_threads": 4, "prefetch_threads": 2}, None),
    ],
)
def test_a_way_to_load_that_another_one_undoes_is_told(machine, options, said):
    """SGLang 0.5.23 takes both without a word."""
    plain = BOX.deployments["baseline_bs128"]
    found = unmet(replace(plain, options={**plain.options, **options}), BOX, stack("cu130"), EIGHT, machine)
    assert (found is None) if said is None else said in found


def test_what_a_machine_lacks_is_one_line_with_the_deployment(machine, tmp_path):
    eagle3 = BOX.deployment("eagle3")
    small = Hardware((*EIGHT.gpus[1:], Gpu("smaller", 80.0)))
    said = unmet(eagle3, BOX, stack("cu130"), small, machine)
    assert "deployments.eagle3]: memory_fraction 0.83 of 77.50 GiB" in (said or "")
    unstated = replace(eagle3, options={k: v for k, v in eagle3.options.items() if k != "memory_fraction"})
    assert "memory_fraction is not stated" in (unmet(unstated, BOX, stack("cu130"), EIGHT, machine) or "")
    said = unmet(eagle3, BOX, stack("cu130"), EIGHT, machine | {"CUDA_HOME": str(tmp_path)})
    assert f"nvcc of CUDA 13, 13.0 or later; CUDA_HOME={tmp_path} has none" in (said or "")
    with pytest.raises(DeploymentError, match=r"no config\.json in"):
        unmet(eagle3, BOX, stack("cu130"), EIGHT, machine | {"KIMI_K25_MODEL": str(tmp_path)})


def test_a_checkpoint_without_weights_or_with_a_broken_index_is_told(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DeploymentError, match=r"holds no \*\.safetensors"):
        read_checkpoint(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for text in ("[]", "{", json.dumps({"metadata": {"total_size": "ten"}}), json.dumps({"metadata": ["x"]})):
        index.write_text(text)
        with pytest.raises(DeploymentError, match=r"model\.safetensors\.index\.json"):
            read_checkpoint(tmp_path)
    index.write_text(json.dumps({"metadata": {"total_size": 7}, "weight_map": {"a": "a.safetensors"}}))
    assert read_checkpoint(tmp_path).nbytes == 7
    (tmp_path / "a.safetensors").write_bytes(b"four")
    assert read_checkpoint(tmp_path).nbytes == 4
