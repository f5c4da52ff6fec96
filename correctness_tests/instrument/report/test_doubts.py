"""What no figure shows: doubts about how a start was measured stand below the verdicts, each in one line."""

from __future__ import annotations

from pathlib import Path

from fixtures.deployments import load_box
from fixtures.records.start import Block, PairSide, Repeated, StartRecord
from fixtures.report.next_steps import Repeat
from fixtures.report.view import view_of

MOMENT = "2026-01-01T00:00:00Z"


def doubts(**changes: object) -> tuple[str, ...]:
    """Of a run of one start."""
    record = StartRecord("s", "r", "cpu", "cpu", "eagle3", "paired", 1, MOMENT, MOMENT, **changes)  # type: ignore[arg-type]
    view = view_of(
        box=load_box("cpu"), box_line="", stack="cpu", results=Path("/r"), repeat=Repeat("cpu", 1), rows={},
        records=[record], baselines={},
    )  # fmt: skip
    assert view.notes[: len(view.doubts)] == view.doubts
    return view.doubts


def test_blocks_that_were_served_again_and_requests_left_out_are_counted() -> None:
    blocks = [Block("w", (), {"p1": "all tokens at one time", "p2": "the same"}), Block("w", ())]
    pair = PairSide("eagle3", 1, (True, False), 2, blocks, [Repeated("w", 2, "no request is evidence")])
    assert doubts(pair=pair, against="against main", faults=("slow-pass",)) == (
        "WARNING: eagle3 start 2 (against main) ran with planted faults: slow-pass",
        "WARNING: eagle3 start pair 2 (against main): 1 block(s) served again: w block 3: no request is evidence",
        "WARNING: eagle3 start pair 2 (against main) w: 2 request(s) left out of its times: p1: all tokens at one time",
    )


def test_requests_left_out_of_a_start_and_a_slow_client_are_told() -> None:
    workload = {"left_out": {"p": "a burst"}, "client_bottleneck": True, "bottleneck": "the client was busy"}
    assert doubts(workloads={"w": workload}) == (
        "WARNING: eagle3 w start 2: the client was busy: the figures may be the client's",
        "WARNING: eagle3 w start 2: 1 request(s) left out of its times: p: a burst",
    )


def test_without_doubts_there_are_none() -> None:
    assert doubts() == ()
