"""What a rank finds in its environment, forked or started afresh."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.allreduce import starting
from fixtures.allreduce.backends import BACKENDS, Backend
from fixtures.allreduce.cases import Case
from fixtures.allreduce.ranks import RankGroup
from fixtures.allreduce.starting import AUTOTUNE_VARIABLE, Launcher, Post, backend_variables

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(120)]

TOLD = """
import json, os
from fixtures.allreduce.adapters.algorithms import TorchAllReduce

class Told(TorchAllReduce):
    def inactive(self, x):
        return json.dumps(dict(os.environ))
"""


@pytest.fixture
def telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """gloo, with ranks that tell their environment."""
    (tmp_path / "told.py").write_text(TOLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return replace(BACKENDS["gloo"], adapter="told:Told")


@pytest.fixture(params=["forked", "afresh"])
def launcher(request: pytest.FixtureRequest, telling: Backend) -> Iterator[Launcher | None]:
    if request.param == "afresh":
        yield None
        return
    forking = Launcher()
    yield forking
    forking.close()


def told(group: RankGroup) -> list[dict[str, str]]:
    """Each rank's environment."""
    (result,) = group.run([Case("exact", "bf16", 8, 1)])
    return [json.loads(report.failures["active"].partition(": ")[2]) for report in result.reports]


def test_what_ranks_tune_goes_with_their_group(
    telling: Backend, launcher: Launcher | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server reads what was tuned on the machine: ranks must not add to it, nor read it."""
    monkeypatch.setenv(AUTOTUNE_VARIABLE, str(tmp_path / "of the machine"))
    with RankGroup(telling, 2, launcher=launcher) as group:
        (folder,) = {environment[AUTOTUNE_VARIABLE] for environment in told(group)}
        assert Path(folder).is_dir()
        Path(folder, "pcie_ipc_all_reduce_ws2.json").write_text("{}")
    assert not Path(folder).exists()
    assert not (tmp_path / "of the machine").exists()


def test_a_backend_sets_its_own_variables(telling: Backend, launcher: Launcher | None) -> None:
    chosen = replace(telling, environment=(("NCCL_ALGO", "ring"), ("NCCL_ALGO", "tree")))
    with RankGroup(chosen, 2, launcher=launcher) as group:
        assert {environment["NCCL_ALGO"] for environment in told(group)} == {"tree"}, "the last one counts"


NCCL = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


@pytest.mark.parametrize("name", [b.name for b in BACKENDS.values() if "cuda" in b.devices])
def test_ranks_on_gpus_have_what_every_server_sets(name: str) -> None:
    found = backend_variables(BACKENDS[name], "cuda", {})
    symmetric = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}  # with --enable-symm-mem a server has these
    assert found["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert {key: found[key] for key in NCCL} == (symmetric if name == "sglang_nccl_symmetric" else NCCL)
    assert dict(BACKENDS[name].environment).items() <= found.items()


def test_what_a_deployment_or_the_machine_sets_wins_as_in_a_server() -> None:
    tuned = replace(BACKENDS["nccl"], environment=(("NCCL_CUMEM_ENABLE", "1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1")))
    found = backend_variables(tuned, "cuda", {"NCCL_NVLS_ENABLE": "1"})
    assert found == {"NCCL_CUMEM_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "SGLang overwrites the connections"


def test_ranks_on_the_cpu_have_none_of_it() -> None:
    assert backend_variables(BACKENDS["ring"], "cpu", {}) == {}


def test_ranks_on_gpus_are_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first instruction on: NCCL and CUDA read their variables once."""
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(
        starting.subprocess, "Popen", lambda _, **how: started.append(how) or SimpleNamespace(stdin=io.BytesIO())
    )
    for name in NCCL:
        monkeypatch.delenv(name, raising=False)
    starting.start_afresh(Post("socket", "/group", 0, 8, BACKENDS["nccl"], "cuda"))
    expected = {**NCCL, "CUDA_DEVICE_MAX_CONNECTIONS": "8", AUTOTUNE_VARIABLE: "/group"}
    assert expected.items() <= started[0]["env"].items()
