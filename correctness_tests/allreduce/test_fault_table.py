"""Do the tables of a run's summary show what the tests recorded?"""

from __future__ import annotations

import pytest
from fault_table import FAULT, NORM_FAULT, TIGHTNESS, shares, summary

from fixtures.allreduce.cases import Case, CaseResult, RankReport

pytestmark = pytest.mark.correctness


def test_summary_has_all_tables() -> None:
    wrong, right = (
        CaseResult("one_shot", 2, Case("exact", "bf16", 8, 1), [RankReport(0, failures=failures), RankReport(1)])
        for failures in ({"values": "gone"}, {})
    )
    row = shares([wrong, right])
    lines = summary(
        [
            (FAULT, ["doubled in one_shot", row]),
            (FAULT, ["stale in one_shot", {"decoding": 0.002, "exact": 0.0}]),
            (TIGHTNESS, ["ring, bf16", {"normal": 0.5}]),
            (NORM_FAULT, ["forgotten in one_shot", {"norm": 1.0, "bias": 0.0}]),
            ("other", 1),
        ]
    )
    assert lines[1].split() == ["doubled", "in", "one_shot", "50%", "·", "·", "·"]
    assert lines[2].split()[3:] == ["·", "<1%"]
    assert lines[5].split()[3:] == ["100%", "·"]
    assert lines[-1].split()[-1] == "0.500"
    assert summary([("other", 1)]) == []
