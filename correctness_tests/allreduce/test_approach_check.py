"""The all-reduce check that an approach's speed waits for: right sums, a planted fault, and what cannot run here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from correctness_tests.allreduce import all_reduce_faults, norm_faults
from fixtures.allreduce.ranks import RankGroup
from fixtures.deployments import load_box
from fixtures.session.correctness import check_all_reduce, checked_all

pytestmark = [pytest.mark.correctness, pytest.mark.xdist_group("allreduce-controls")]

TWO_RANKS = load_box("cpu").deployment("tp2")


def test_right_sums_are_counted() -> None:
    found = check_all_reduce("gloo", TWO_RANKS)
    assert (found.wrong, found.unavailable) == (None, None)
    assert found.ranks == 2
    assert found.calls > 650


@pytest.mark.parametrize(
    "fault",
    [
        "dropped rank",
        "no kernel launched",
        "odd tail",
        "two sizes in turn",
        "NaN swallowed",
        "stale once in 500",
        "large tail",
    ],
)
def test_a_wrong_sum_is_wrong_output(fault: str) -> None:
    found = check_all_reduce("gloo", TWO_RANKS, fault=all_reduce_faults.planted(fault))
    assert found.wrong is not None
    assert "elements wrong" in found.wrong
    assert "\n" not in found.wrong


def test_a_wrong_fused_norm_is_wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, fault = RankGroup.norm, norm_faults.planted("norm without the residual")
    monkeypatch.setattr(RankGroup, "norm", lambda *asked, **how: norm(*asked, **how, fault=fault))
    found = check_all_reduce("one_shot", TWO_RANKS)
    assert str(found.wrong).startswith("fused norm, bf16, 1 x 7168, weights same, scale 1: norm: rank ")


def test_what_cannot_run_here_says_why_and_counts_no_call() -> None:
    found = check_all_reduce("sglang_pcie_ipc", TWO_RANKS)
    assert "does not run on cpu" in str(found.unavailable)
    assert (found.calls, found.wrong) == (0, None)


def test_a_deployment_of_one_rank_sums_nothing() -> None:
    assert checked_all(["gloo"], load_box("cpu").deployment("eagle3")) == ()
    eight = replace(TWO_RANKS, options={**TWO_RANKS.options, "tensor_parallel": 3})
    assert "ranks, not 3" in str(check_all_reduce("gloo", eight).unavailable)
