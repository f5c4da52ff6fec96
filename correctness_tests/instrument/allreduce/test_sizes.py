"""Does a backend get the sizes that it takes, and only those?"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fixtures.allreduce.adapters import Seat
from fixtures.allreduce.adapters import sglang as adapter
from fixtures.allreduce.backends import ALL_SIZES, BACKENDS
from fixtures.allreduce.cases import BATCH_BYTES, HIDDEN, Case, elements
from fixtures.session.rank_starts import SIZES, _ranks

pytestmark = pytest.mark.correctness

PCIE_IPC = ("sglang_pcie_ipc", "flashinfer_pcie_ipc")


def takes(name: str, numel: int, world_size: int, dtype: str = "bf16") -> bool:
    return BACKENDS[name].takes(Case("exact", dtype, numel, 0), world_size)


@pytest.mark.parametrize("name", PCIE_IPC)
@pytest.mark.parametrize("size", ALL_SIZES)
def test_pcie_ipc_takes_whole_packs_and_one_for_each_rank(name: str, size: int) -> None:
    """A pack is 16 bytes. Anything else is an error in the rank, which ends it."""
    assert not any(takes(name, numel, size) for numel in range(8 * size))
    assert takes(name, 8 * size, size)
    assert not takes(name, 8 * size + 4, size)
    assert not takes(name, 8 * size, size, "fp16")
    assert takes(name, elements(BATCH_BYTES[-1], "bf16"), size)
    assert not takes(name, elements(BATCH_BYTES[-1], "bf16") + 8, size)


def test_other_backends_take_nothing_and_one_element() -> None:
    assert takes("ring", 0, 8)
    assert takes("ring", 1, 8)


def test_the_pcie_ipc_workspace_holds_the_largest_size_that_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang sizes it in rows of the hidden size."""
    prepared: dict[str, Any] = {}
    monkeypatch.setattr(adapter.SglangPcieIpc, "OPEN", staticmethod(lambda **_: None))
    monkeypatch.setattr(adapter.SglangPcieIpc, "PREPARE", SimpleNamespace(on=lambda _, **asked: prepared.update(asked)))
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    adapter.SglangPcieIpc(Seat(0, 2, torch.device("cpu"), Path()))
    largest = BACKENDS["sglang_pcie_ipc"].max_bytes // 2
    assert prepared["hidden"] == HIDDEN
    assert largest <= prepared["hidden"] * prepared["max_rows"] < largest + HIDDEN


def test_ranks_time_the_sizes_that_their_backend_takes() -> None:
    assert [nbytes for _, nbytes in _ranks("gloo", "cpu", 2).timed] == list(SIZES)
    assert BATCH_BYTES[-1] not in {nbytes for _, nbytes in _ranks("flashinfer_fusion", "cuda", 8).timed}
    assert {mode for mode, _ in _ranks("sglang_pcie_ipc", "cuda", 8).timed} == {"eager", "graph"}
