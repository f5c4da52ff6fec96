"""Useless drafts and looping answers are told of any deployment and without a baseline; drafts that are known to be
useless as they are measured are no measurement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from start_cases import write_starts

from fixtures.deployments import load_box
from fixtures.errors import MeasurementFailed
from fixtures.records.metric import Metric
from fixtures.serving.client_results import RequestResult, WorkloadResult
from fixtures.serving.failure import Cause
from fixtures.session.measure_start import require_drafts

TOKENS = 80
TIMES = tuple(0.01 * index for index in range(TOKENS))


def result(passes: int | None, ids: tuple[int, ...] = ()) -> WorkloadResult:
    requests = tuple(
        RequestResult(f"p{number}", 10, TOKENS, 0, 0.0, TIMES, "length", verify_passes=passes, output_ids=ids)
        for number in range(4)
    )
    return WorkloadResult("single_stream", 1, requests, 1.0, 0)


def asked(name: str, passes: int | None) -> None:
    server = SimpleNamespace(name=name, log_path="server.log")
    workload = SimpleNamespace(name="single_stream")
    require_drafts(server, load_box("cpu").deployment(name), workload, result(passes))


@pytest.mark.parametrize("passes", [79, 78, 77])
def test_a_draft_of_which_nothing_is_accepted_is_no_measurement(passes: int) -> None:
    with pytest.raises(MeasurementFailed, match=r"eagle3: single_stream: the drafts are useless: accept len") as e:
        asked("eagle3", passes)
    assert "accept length 1.0" in str(e.value)
    assert e.value.cause == Cause.NOT_ACTIVE
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("name", "passes"), [("eagle3", 29), ("eagle3", 70), ("eagle3", None), ("baseline", None)])
def test_other_drafts_and_none_are(name: str, passes: int | None) -> None:
    asked(name, passes)


LENGTH = Metric("accept_length", 1.013, "tokens/pass", "counted", "higher", "single_stream", 10)
RATE = Metric("decode_tok_s", 90.0, "tok/s", "timing", "higher", "single_stream", 10)
KV = Metric("kv_tokens", 20000.0, "tokens", "exact", "higher")


def workloads(looping: int) -> dict[str, object]:
    given = result(79, (0,) * TOKENS).to_json() | {"degenerate": [f"p{n}" for n in range(looping)]}
    return {"single_stream": given}


def test_looping_answers_are_told_of_a_plain_server_too(judge_folder, tmp_path: Path) -> None:
    write_starts(tmp_path / "run", 3, workloads=workloads(4))
    _, text = judge_folder(tmp_path / "run")
    assert "WARNING: baseline: answers that loop: single_stream 4 of 4" in text
    write_starts(tmp_path / "right", 3, workloads=workloads(0))
    assert "answers that loop" not in judge_folder(tmp_path / "right")[1]


def test_useless_drafts_are_told_from_records_without_a_baseline(judge_folder, tmp_path: Path) -> None:
    write_starts(
        tmp_path / "run", 3, deployment="eagle3", workloads=workloads(0), metrics=[KV, RATE, LENGTH]
    )
    _, text = judge_folder(tmp_path / "run")
    assert "WARNING: eagle3 single_stream: the drafts are useless: accept length 1.01" in text
