"""`--compare` as a user gives it: two stacks or two folders, from records alone, and one line for a bad side."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_cases import ENVIRONMENT, correctness, write_failed, write_starts, write_tried

from fixtures.campaign.compare_stacks_text import _FIRST
from fixtures.gate.spec import VERDICTS
from fixtures.records.correctness import ReplayChecked, write_correctness

Suite = Callable[..., tuple[int, str]]
OLD = ENVIRONMENT | {"sglang": "0.5.10.post1", "torch": "2.9.1"}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The same machine on two stacks: the new one is slower, and makes PCIe-IPC work."""
    old, new = tmp_path / "old", tmp_path / "new"
    write_starts(old, "baseline_bs128", 89.5, stack="cu128", environment=OLD)
    write_tried(new, "pcie_ipc", 120.0, at=80.0)
    return old, new


@pytest.mark.parametrize("form", ["a space", "a comma"])
def test_two_stacks_from_what_is_stored(suite: Suite, form: str) -> None:
    sides = ("--compare", "cu128", "cu130") if form == "a space" else ("--compare=cu128,cu130",)
    code, text = suite(*sides)
    assert code == 0, text
    assert text.startswith("Stacks side by side: cu128 (old) and cu130 (new)")
    pinned = [line.split() for line in text.splitlines() if line.startswith("  pinned ")]
    assert ["pinned", "nvidia-nccl", "2.27.5", "2.30.7"] in pinned
    assert ["pinned", "sglang", "0.5.10.post1", "0.5.23"] in pinned
    assert "custom_all_reduce" in text.split("Approaches")[1]
    assert "150 to 300 µs (reported)" in text
    assert "test session starts" not in text, "nothing is collected"


def test_two_results_folders(suite: Suite, folders: tuple[Path, Path]) -> None:
    code, text = suite(f"--compare={folders[0]},{folders[1]}")
    assert code == 1, text
    differences = text.split("Approaches")[0]
    assert "0.5.10.post1" in differences
    assert "2.9.1" in differences
    assert "machine" not in differences
    approaches = {line.split()[0]: line for line in text.split("Approaches")[1].split("Metrics")[0].splitlines()[3:-1]}
    assert "improves" in approaches["pcie_ipc"], "its outcome is that of the records, not the one on file"
    assert "unsupported" in approaches["torch_symmetric_memory"], "what the folder does not show is as on file"
    assert "regression: baseline_bs128 single_stream/decode_tok_s" in text.split("What cu130 changes")[1]


def test_two_runs_on_one_stack_are_old_and_new(suite: Suite, folders: tuple[Path, Path], tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_tried(again, "pcie_ipc", 120.0, at=80.0, environment=ENVIRONMENT | {"driver": "600.1"}, run="again")
    broken = ReplayChecked(2048, 4.0, 0.05, ("prompt-3: replay regret: token 7 is wrong",))
    write_correctness(correctness("pcie_ipc", replay=broken), again)
    code, text = suite(f"--compare={folders[1]},{again}")
    assert code == 1, text
    changes = text.split("What new changes")[1]
    assert "breaks pcie_ipc: improves -> wrong output" in changes
    assert "600.1" in text
    code, text = suite(f"--compare={again},{folders[1]}")
    assert "unblocks pcie_ipc: wrong output -> improves" in text


def test_a_folder_has_one_outcome_judged_alone_and_side_by_side(suite: Suite, tmp_path: Path) -> None:
    """An arm whose output nobody checked is not tried, in both."""
    old, new = tmp_path / "old", tmp_path / "new"
    write_starts(old, "baseline_bs128", 89.5, stack="cu128", environment=OLD)
    write_tried(new, "pcie_ipc", 89.5)
    write_starts(new, "pcie_ipc_eagle3", 170.0)
    given = ("--box=pcie_blackwell", f"--from-results={new}", f"--baselines={tmp_path / 'none'}")
    _, alone = suite("-m", "perf", *given, "perf_tests/test_campaign.py")
    assert "pcie_ipc on cu130: first outcome: no effect" in alone
    _, text = suite(f"--compare={old},{new}")
    row = next(line for line in text.split("Approaches")[1].splitlines() if line.startswith("  pcie_ipc "))
    assert row.split()[1:] == ["not", "tried", "no", "effect", "first", "outcome"]


@pytest.mark.parametrize(
    ("starts", "rate", "code", "said"),
    [
        (10, 89.5, 0, "components differ"),
        (10, 82.3, 1, "regression: baseline_bs128 single_stream/decode_tok_s"),
        (5, 89.5, 1, "measurement failed: baseline_bs128 single_stream/decode_tok_s: the baseline has 5 starts"),
        (10, None, 1, "every start of baseline_bs128 on cu130 failed"),
    ],
)
def test_the_exit_code_is_1_for_what_got_worse_or_was_not_measured(
    suite: Suite, tmp_path: Path, starts: int, rate: float | None, code: int, said: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_starts(old, "baseline_bs128", 89.5, starts, stack="cu128", environment=OLD)
    if rate is None:
        write_failed(new, "baseline_bs128", "crash")
    else:
        write_starts(new, "baseline_bs128", rate)
    found, text = suite(f"--compare={old},{new}")
    assert found == code, text
    assert said in text.split("What cu130 changes")[1]


def test_a_side_that_cannot_be_used_is_one_line(suite: Suite, folders: tuple[Path, Path], tmp_path: Path) -> None:
    cpu = tmp_path / "cpu"
    write_starts(cpu, "baseline", 50.0, box="cpu", stack="cpu")
    both = tmp_path / "both"
    for stack in ("cu128", "cu130"):
        write_starts(both, "baseline_bs128", 50.0, stack=stack)
    copied = shutil.copytree(folders[1], tmp_path / "copied")
    cases = {
        (f"--compare={folders[1]},{copied}",): "both sides hold start",
        ("--compare=cu128,cu129",): "'cu129': no results folder and no stack; did you mean 'cu128'?",
        ("--compare=cu128",): "1 sides; give two, as --compare OLD NEW",
        ("--compare=cu128,cu128",): "both sides are the same",
        (f"--compare={folders[0]},{cpu}",): "records of boxes cpu, pcie_blackwell compare nothing",
        (f"--compare={folders[0]},{both}",): "holds records of stacks cu128, cu130: name one of them, or give",
        ("--compare=cu128,cu130", f"--baselines={tmp_path / 'none'}"): "has no baseline of either stack",
        ("--compare=cu128,cu130", "--box=nobox"): "unknown box 'nobox'",
    }
    for arguments, said in cases.items():
        code, text = suite(*arguments)
        assert code == pytest.ExitCode.USAGE_ERROR, text
        assert "Traceback" not in text
        assert said in text, text
        assert text.count("ERROR: ") == 1


def test_every_verdict_has_its_place() -> None:
    assert {*_FIRST, "no change"} == {*VERDICTS}
