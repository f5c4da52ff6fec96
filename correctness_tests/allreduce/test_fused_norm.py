"""All-reduce with residual add and RMSNorm: is it within the derived bound of exact arithmetic, on every rank alike?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fault_table import NORM_COLUMNS, NORM_FAULT, TIGHTNESS

from correctness_tests.allreduce.norm_faults import NORM_FAULTS, planted
from fixtures.allreduce.cases import HIDDEN, NormCase, norm_failures
from fixtures.allreduce.ranks import RankGroup

pytestmark = pytest.mark.correctness

Record = Callable[[str, object], None]
SMALL = 2.0**-10  # epsilon then counts
TOKENS = 4
SHOWN = 4  # ranks of which the tables tell
SAME, FP32 = NormCase("bf16", TOKENS, HIDDEN), NormCase("bf16", TOKENS, HIDDEN, weights="fp32")
FAINT = NormCase("bf16", TOKENS, HIDDEN, scale=SMALL)
SEEN = {
    "residual forgotten": (SAME, "residual sum"),
    "residual of every rank": (SAME, "residual sum"),
    "weight plus one": (SAME, "norm"),
    "norm without the residual": (SAME, "norm"),
    "first token's scale": (SAME, "norm"),
    "truncated norm": (SAME, "bias"),
    "weights misread": (FP32, "norm"),
    "weights rounded": (FP32, "bias"),
    "type of the weights": (FP32, "type"),
    "no epsilon": (FAINT, "norm"),
}
"""For each fault the case that shows it, and the check."""


@pytest.mark.parametrize(
    ("tokens", "weights", "scale"),
    [(1, "same", 1.0), (3, "same", 1.0), (4, "same", 1.0), (4, "fp32", 1.0), (3, "same", SMALL)],
)
def test_norm_is_within_its_bound(
    fused_group: RankGroup, calls: Iterator[int], tokens: int, weights: str, scale: float, record_property: Record
) -> None:
    trap = fused_group.backend.fp32_weights == "wrong" and weights == "fp32"
    for dtype in fused_group.backend.dtypes:
        case = NormCase(dtype, tokens, HIDDEN, weights, scale)
        reports = fused_group.norm(case, next(calls))
        found = norm_failures(reports)
        if trap and dtype != "fp32":
            assert found, f"{fused_group.backend.name} now takes weights in fp32; declare it `right`"
            continue
        assert not found, f"{fused_group.name}, {case}: {found}"
        if fused_group.world_size != SHOWN:
            continue
        tight = {name: max(r.errors[name] for r in reports) for name in reports[0].errors}
        record_property(TIGHTNESS, [f"fused, {fused_group.name}, {case}", tight])


@pytest.mark.parametrize("fault", SEEN)
def test_fault_is_seen(fused_group: RankGroup, calls: Iterator[int], fault: str, record_property: Record) -> None:
    case, check = SEEN[fault]
    if case.weights == "fp32" and fused_group.backend.fp32_weights == "wrong":
        pytest.skip(f"{fused_group.backend.name} is wrong with weights in fp32 without any fault")
    found = norm_failures(fused_group.norm(case, next(calls), fault=planted(fault)))
    row = {column: float(column in found) for column in NORM_COLUMNS}
    if fused_group.world_size == SHOWN:
        record_property(NORM_FAULT, [f"{fault} in {fused_group.backend.name}", row])
    assert check in found, f"{fault}: {found}"
    if check != "residual sum":
        assert "residual sum" not in found, "this leaves the sum as it is"


def test_every_fault_has_a_control() -> None:
    assert set(SEEN) == set(NORM_FAULTS)
