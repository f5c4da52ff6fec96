"""A whole run on the records of start pairs alone."""

from __future__ import annotations

import pytest
from start_cases import write_pairs, write_starts


def test_start_pairs_are_judged_again_from_their_records(judge_stream, tmp_path):
    write_pairs(tmp_path / "slow", [0.2] * 4)
    code, text = judge_stream(tmp_path / "slow")
    assert code == 1, text
    assert "regression" in text
    assert "in 3 start pairs" in text
    assert "other side" in text
    write_pairs(tmp_path / "same", [0.0] * 4)
    code, text = judge_stream(tmp_path / "same")
    assert code == 0, text
    assert "regression" not in text


def test_recorded_start_pairs_are_looked_at_as_they_were_measured(judge_stream, tmp_path):
    """After each of them; the first verdict stands, and none before the third."""
    write_pairs(tmp_path / "few", [0.5, 0.5])
    code, text = judge_stream(tmp_path / "few")
    assert code == 0, text
    assert "needs 3" in text
    write_pairs(tmp_path / "late", [*[0.0] * 8, *[0.5] * 4])
    code, text = judge_stream(tmp_path / "late")
    assert code == 0, text
    assert "2 no change" in text


def test_a_pair_with_one_side_is_refused(judge_stream, tmp_path):
    write_pairs(tmp_path / "half", [0.2] * 4, without="p20")
    code, text = judge_stream(tmp_path / "half")
    assert "start pair 3 of baseline has one side only" in text
    assert code not in (0, 10), text


def test_start_pairs_are_not_taken_for_starts(judge_stream, tmp_path):
    """Both sides of a pair lie in one folder: pooled, a regression would be averaged away."""
    write_starts(tmp_path / "pairs", 4, role="paired")
    code, text = judge_stream(tmp_path / "pairs")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "does not say which" in text
    code, text = judge_stream(tmp_path / "pairs", f"--compare={tmp_path / 'pairs'},cu128")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "start pairs" in text


def test_first_starts_that_were_discarded_leave_a_folder_of_pairs_one(judge_stream, tmp_path):
    folder = tmp_path / "pairs"
    write_pairs(folder, [0.2] * 4)
    write_starts(folder, 2, name="prime", role="prime", discarded="the first start after an install compiles kernels")
    code, text = judge_stream(folder)
    assert code == 1, text
    assert "in 3 start pairs" in text
    code, text = judge_stream(folder, f"--compare={folder},cu128")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "holds start pairs of --against only" in text
