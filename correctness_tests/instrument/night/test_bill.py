"""The bill of a night: phases from the logs of servers, sums that add up, durations for the next plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.night.bill import bill, bill_lines, loading_lines, minutes_of, phases, split
from fixtures.records.start import StartRecord, utc_now

LOG = """
[2026-03-01 22:00:10 TP0] Load weight begin. avail mem=93.89 GB
[2026-03-01 22:03:10 TP0] Load weight end. elapsed=180.25 s, type=DeepseekV3ForCausalLM, quant=None, avail mem=20.1 GB
[2026-03-01 22:03:14 TP1] Load weight end. elapsed=184.50 s, type=DeepseekV3ForCausalLM, quant=None, avail mem=20.1 GB
[2026-03-01 22:03:24 TP0] Load weight end. elapsed=9.75 s, type=LlamaForCausalLMEagle3, quant=None, avail mem=18.8 GB
[2026-03-01 22:03:26 TP1] Load weight end. elapsed=9.00 s, type=LlamaForCausalLMEagle3, quant=None, avail mem=18.8 GB
[2026-03-01 22:04:26 TP0] Capture target verify CUDA graph end. elapsed=60.00 s, mem usage=0.70 GB, avail mem=18.1 GB.
[2026-03-01 22:04:40 TP0] Capture draft decode CUDA graph end. elapsed=12.50 s, mem usage=0.10 GB, avail mem=18.0 GB.
"""


def record(deployment: str = "eagle3", **seconds: float) -> StartRecord:
    at = utc_now()
    return StartRecord(
        id=f"{deployment}-{len(seconds)}", run="r", box="cpu", stack="cpu", deployment=deployment, role="stage1",
        index=0, started_at=at, finished_at=at, seconds=seconds,
    )  # fmt: skip


def test_the_slowest_rank_s_phases_target_and_draft_together() -> None:
    assert phases(LOG) == {"loading weights": 193.5, "capturing graphs": 72.5}
    assert phases("a server on a processor says none of this") == {}


def test_a_start_is_split_into_what_adds_up_to_it() -> None:
    parts = split(
        record(
            total=400.0, starting=300.0, generating=90.0,
            **{"workload a": 50.0, "workload b": 40.0, "loading weights": 200.0, "capturing graphs": 60.0},
        )
    )  # fmt: skip
    assert parts["starting"] == pytest.approx(40.0)
    assert "generating" not in parts
    assert sum(parts.values()) == pytest.approx(400.0)


@given(
    st.lists(
        st.tuples(*(st.floats(0, 500) for _ in range(5))).map(
            lambda each: record(
                total=sum(each), starting=each[0] + each[1], generating=each[2] + each[3],
                **{"loading weights": each[0], "workload a": each[2], "workload b": each[3]},
            )
        ),
        max_size=6,
    ),
    st.floats(0, 100),
)  # fmt: skip
def test_phases_and_deployments_add_up_to_the_night(records: list[StartRecord], idle: float) -> None:
    whole = sum(each.seconds["total"] for each in records) + idle
    rows = bill(records, whole)
    own = [seconds for what, seconds, _ in rows if not what.startswith(("for ", "no evidence"))]
    assert sum(own) == pytest.approx(whole, abs=1e-3)
    named = sum(seconds for what, seconds, _ in rows if what.startswith("for "))
    assert named == pytest.approx(whole - idle, abs=1e-3)
    assert len(bill_lines(rows)) == len(rows)


def test_failed_and_discarded_starts_are_told() -> None:
    failed = record(total=60.0, starting=60.0)
    failed.status = "measurement failed"
    assert ("no evidence", 60.0, 1) in bill([failed, record("tp2", total=30.0, starting=30.0)])
    assert "no evidence: 1.0 min in 1 start" in bill_lines(bill([failed]))


def test_what_starts_took_plans_the_next_night() -> None:
    found = minutes_of(
        [record(total=180.0, **{"workload a": 60.0}), record(total=240.0, **{"workload a": 60.0})],
        {"eagle3": ["a"], "tp2": ["a"]},
    )
    assert found == {"eagle3": {"load": 3.0, "a": 1.0}}


def test_what_loading_took_is_told_by_way_the_quickest_first() -> None:
    def loaded(seconds: float, draft: str | None = None, **options: object) -> StartRecord:
        found = record(total=900.0, **{"loading weights": seconds})
        found.configuration = {"requested": {"draft_model": draft, "options": {"tensor_parallel": 8, **options}}}
        return found

    plain = [loaded(480.0), loaded(500.0), loaded(470.0)]
    ways = [loaded(300.5, prefetch_threads=4), loaded(610.0, load_format="fastsafetensors", loader_threads=2)]
    silent = record(total=900.0)  # failed before it had loaded
    assert loading_lines([*plain, *ways, silent, loaded(9.0, draft="$DRAFT")]) == [
        "loading weights prefetch_threads = 4: 300.5 s, median of 1 start",
        "loading weights as SGLang does by itself: 480.0 s, median of 3 starts",
        "loading weights load_format = fastsafetensors, loader_threads = 2: 610.0 s, median of 1 start",
    ]
    assert loading_lines(plain) == []
    assert loading_lines([silent]) == []
