"""Does the pre-flight of the collectives pass where they work, and end in time, with the cause, where they do not?"""

from __future__ import annotations

import time

import pytest

from correctness_tests.allreduce.all_reduce_faults import planted
from fixtures.allreduce.ranks import RankGroup, preflight
from fixtures.allreduce.starting import RankFailed, RankHung
from fixtures.errors import MeasurementFailed

pytestmark = [pytest.mark.correctness, pytest.mark.xdist_group("allreduce-controls")]


def test_works_here() -> None:
    preflight(2, "cpu")


def test_hang_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankGroup, "run", _with_short_limit(RankGroup.run))
    begin = time.monotonic()
    with pytest.raises(RankHung, match="no answer from rank 0, 1 in 2 s") as caught:
        preflight(2, "cpu", fault=planted("rank hangs"))
    assert time.monotonic() - begin < 90
    assert any("all_reduce_fault_kinds.py" in line for line in caught.value.lines)


def test_ranks_that_do_not_start_in_time_are_told_as_that() -> None:
    with pytest.raises(RankFailed, match="2 of 2 ranks did not start in time"):
        preflight(2, "cpu", timeout_s=0.05)


def test_wrong_sum_is_a_failure() -> None:
    with pytest.raises(MeasurementFailed, match=r"gloo sums wrongly with 2 ranks: .*rank 1 is missing from the sum"):
        preflight(2, "cpu", fault=planted("dropped rank"))


def _with_short_limit(run):
    """The limit is for all of it, and starting takes most: on a loaded machine a short one would end the start
    instead."""
    return lambda group, cases, *, fault=None, timeout_s=0.0: run(group, cases, fault=fault, timeout_s=2)
