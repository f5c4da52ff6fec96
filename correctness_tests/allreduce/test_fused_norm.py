"""All-reduce with residual add and RMSNorm: is it within the derived bound of exact arithmetic, on every rank alike?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fixtures.allreduce.cases import HIDDEN
from fixtures.allreduce.ranks import RankGroup

pytestmark = pytest.mark.correctness

FAULTS = ("residual forgotten", "residual of every rank", "weight plus one", "norm without the residual")


@pytest.mark.parametrize("tokens", [1, 3, 4])
def test_norm_is_within_its_bound(
    fused_group: RankGroup, calls: Iterator[int], tokens: int, record_property: Callable[[str, object], None]
) -> None:
    for dtype in fused_group.backend.dtypes:
        reports = fused_group.norm(dtype, tokens, HIDDEN, next(calls))
        tight = {
            "norm": max(r.norm_tightness for r in reports),
            "residual sum": max(r.sum_tightness for r in reports),
        }
        record_property("all-reduce tightness", [f"fused, {tokens} tokens, {fused_group.name}, {dtype}", tight])
        assert max(tight.values()) <= 1, f"{fused_group.name}, {dtype}, {tokens} tokens: error over bound {tight}"
        assert len({tuple(r.digests) for r in reports}) == 1, "the ranks' bits differ"


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_seen(fused_group: RankGroup, calls: Iterator[int], fault: str) -> None:
    reports = fused_group.norm("bf16", 4, HIDDEN, next(calls), fault=fault)
    worst = max(max(r.norm_tightness, r.sum_tightness) for r in reports)
    assert worst > 1, f"{fault}: error over bound {worst:.2f}"
    if fault in ("weight plus one", "norm without the residual"):
        assert max(r.sum_tightness for r in reports) <= 1, "these leave the sum as it is"


def test_every_fault_has_a_control() -> None:
    from fixtures.allreduce.norm_faults import NORM_FAULTS

    assert set(FAULTS) == set(NORM_FAULTS)
