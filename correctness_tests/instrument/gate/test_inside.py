"""What is in a pass is judged by class, after one start, whatever its times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.errors import BaselineError
from fixtures.gate.baselines import load_baseline, write_baseline
from fixtures.gate.inside import judge_kernels, where_it_went
from fixtures.gate.saving import baseline_from_records
from fixtures.profile.figures import KernelFigures, Profile, RankFigures
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord

COUNTS = {"all-reduce": 122, "norm": 245, "GEMM": 49, "copy": 12}
BEFORE = Profile("VERIFY", 1, 8, 2, True, COUNTS, {}, (KernelFigures("k", "GEMM", 49, 1.0),), (), {}, ())


def with_counts(**changes: int) -> Profile:
    names = {name.replace("_", "-"): count for name, count in changes.items()}
    return replace(BEFORE, counts={name: count for name, count in {**COUNTS, **names}.items() if count})


def start(profile: Profile | None, index: int = 0, note: str = "") -> StartRecord:
    moment = f"2026-01-01T00:{index:02}:00.000Z"
    return StartRecord(
        f"s{index}", "r", "cpu", "cpu", "tp2", "stage1", index, moment, moment, environment={"sglang": "1"},
        metrics=[Metric.of("kv_tokens", 100.0, pinned=False)], profile=profile, profile_note=note,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("after", "verdict", "reason"),
    [
        (with_counts(), "no change", "428 in each pass, as in the baseline"),
        (with_counts(copy=73), "regression", "+61 copies, 122 all-reduces as before"),
        (with_counts(norm=244), "regression", "-1 norm, 122 all-reduces as before"),
        (with_counts(all_reduce=123), "regression", "+1 all-reduce, 245 norms as before"),
        (with_counts(all_reduce=0), "regression", "-122 all-reduces, 245 norms as before"),
        # as many in all: only the classes tell
        (with_counts(copy=11, norm=246), "regression", "-1 copy, +1 norm, 122 all-reduces as before"),
        # one name for another in a class
        (replace(BEFORE, kernels=(KernelFigures("other", "GEMM", 49, 1.0),)), "regression", "-49 k, +49 other"),
        (replace(BEFORE, exact=False, notes=("rank 0 pass 3: +1 copy",)), "too noisy to tell",
         "its passes are not alike: rank 0 pass 3: +1 copy"),
        (None, "not measured", "no start was profiled"),
    ],
)  # fmt: skip
def test_any_change_of_a_class_is_a_verdict_after_one_start(after: Profile | None, verdict: str, reason: str) -> None:
    found = judge_kernels([start(after)], BEFORE)
    assert (found.verdict, found.reason[: len(reason)]) == (verdict, reason)
    assert found.kind == "exact"
    assert found.blocks == (verdict == "regression")


def test_one_changed_start_among_several_is_enough() -> None:
    starts = [start(BEFORE), start(None, 1), start(with_counts(copy=13), 2)]
    assert judge_kernels(starts, BEFORE).reason.startswith("+1 copy")


def test_what_there_is_to_compare_with_is_asked_first() -> None:
    assert judge_kernels([start(BEFORE)], None).verdict == "no comparable baseline"
    found = judge_kernels([start(BEFORE)], BEFORE, {"sglang": "2"})
    assert found.verdict == "no comparable baseline"
    assert "sglang" in found.reason
    assert judge_kernels([start(BEFORE)], BEFORE, {"sglang": "1", "driver": "590"}).verdict == "no change"
    note = "no profile: the profiler wrote no trace"
    assert judge_kernels([start(None, note=note)], BEFORE).reason == note
    failed = start(BEFORE)
    failed.status, failed.failure = "measurement failed", {"cause": "x", "message": "it died", "lines": []}
    assert judge_kernels([failed], BEFORE).verdict == "measurement failed"


def test_where_the_time_went_is_told_of_two_profiles_of_one_kind() -> None:
    fast, slow = (RankFigures(0, us + 1000.0, us, us, None, 0.0, {"all-reduce": us}) for us in (3900.0, 9800.0))
    before, after = replace(BEFORE, ranks=(fast,)), replace(BEFORE, ranks=(slow,))
    told = where_it_went("tp2", before, after)
    assert told is not None
    assert "tp2, where the time of a pass changed: communication 3.9 → 9.8 ms: all-reduce kernels 122 × " in told
    assert where_it_went("tp2", None, after) is None
    assert where_it_went("tp2", replace(before, kind="DECODE"), after) is None


def test_a_baseline_keeps_the_profile_of_one_of_its_starts(tmp_path: Path) -> None:
    records = [start(BEFORE if index == 3 else None, index) for index in range(10)]
    made = baseline_from_records(records, "first")
    path = write_baseline(made, tmp_path)
    assert load_baseline(path).profile == BEFORE
    path.write_text(path.read_text().replace('"passes": 8', '"passes": "eight"'))
    with pytest.raises(BaselineError, match=r"profile/passes = 'eight': no count: save the baseline again"):
        load_baseline(path)
    without = write_baseline(baseline_from_records([start(None, index) for index in range(10)], "first"), tmp_path)
    assert load_baseline(without).profile is None
    assert "profile" not in without.read_text()
