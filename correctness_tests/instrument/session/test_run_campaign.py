"""The campaign's tests as a user runs them, on records alone: what passes, what fails, what is said loudly."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from campaign_cases import correctness, passes, write_failed, write_starts, write_tried

from fixtures.campaign.loading import FILE
from fixtures.records.correctness import ReplayChecked, write_correctness
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED

TESTS = "perf_tests/test_campaign.py"
Suite = Callable[..., tuple[int, str]]


@pytest.fixture
def judge_folder(suite: Suite, tmp_path: Path) -> Suite:
    """`pytest -m perf --from-results` of the campaign's tests, without baselines; exit code and text."""

    def judge(folder: Path, *arguments: str, box: str = "pcie_blackwell") -> tuple[int, str]:
        given = (f"--box={box}", f"--from-results={folder}", f"--baselines={tmp_path / 'none'}")
        return suite("-m", "perf", "-rsfE", *given, TESTS, *arguments)

    return judge


def line_of(text: str, start: str) -> str:
    return next((line for line in text.splitlines() if line.startswith(start)), text)


def test_outcomes_from_records(judge_folder: Suite, tmp_path: Path) -> None:
    """One folder: an approach that works for the first time, one refused, one silent, and the causal test."""
    write_tried(tmp_path, "pcie_ipc", 120.0)
    write_failed(tmp_path, "flashinfer_fusion", "unsupported architecture", "requires SM90 or SM10X NVIDIA GPUs.")
    write_starts(tmp_path, "eagle3", 300.0, passes=passes(verify=False))
    write_correctness(correctness("eagle3"), tmp_path)
    for graph, rate in (("512", 82.0), ("128", 89.5)):
        for tokens in ("small", "large"):
            write_starts(tmp_path, f"causal_bs{graph}_{tokens}_kv", rate, count=3)
    code, text = judge_folder(tmp_path)
    assert code == 0, text
    assert "first outcome: improves" in line_of(text, "pcie_ipc on cu130")
    assert "first outcome: unsupported" in line_of(text, "flashinfer_fusion on cu130")
    silent = line_of(text, "eagle3 on cu130")
    assert "first outcome: unsupported" in silent
    assert "300" not in text.split("campaign: outcomes")[1].split("====")[0], "no figure under the approach's name"
    assert "[approaches.pcie_ipc.outcomes.cu130]" in text
    assert "this run is of stack cu130" in text
    assert "holds no start of mscclpp, mscclpp_eagle3" in text
    assert "eagle3: not known: attribution: passes of" in text, "passes longer than the step are not its parts"
    assert "graph 128" in text
    assert "The KV-cache explanation is refuted" in text

    code, text = judge_folder(tmp_path, "--strict-outcomes")
    assert code == 1, text
    assert failures(text) == {"pcie_ipc-cu130", "flashinfer_fusion-cu130", "eagle3-cu130"}


RECORDED = {
    # approach on cu128: what the records show, next to what is on record there, and whether that is a change
    "custom_all_reduce": (120.0, "UNBLOCKED: improves, recorded as slower", True),
    "torch_symmetric_memory": (60.0, "UNBLOCKED: slower, recorded as unsupported", True),
    "eagle3": (54.1, "slower, as recorded", False),
}


def test_the_same_passes_worse_fails_and_better_passes_loudly(judge_folder: Suite, tmp_path: Path) -> None:
    for approach, (rate, _, _) in RECORDED.items():
        write_tried(tmp_path, approach, rate, stack="cu128")
    code, text = judge_folder(tmp_path)
    assert code == 0, text
    for approach, (_, said, changed) in RECORDED.items():
        line = line_of(text, f"{approach} on cu128")
        assert said in line
        assert ("record it: in fixtures/campaign/approaches.toml" in line) is changed

    # The reported gain of the smaller graph is gone, and the quickest approach computes nonsense.
    write_starts(tmp_path, "baseline_bs512", 89.5, stack="cu128")
    write_correctness(correctness("baseline_bs128", "cu128"), tmp_path)
    wrong = ReplayChecked(2048, 4.0, 0.05, ("prompt-3: replay regret: token 7 is wrong",))
    write_correctness(correctness("custom_all_reduce", "cu128", replay=wrong), tmp_path)
    code, text = judge_folder(tmp_path)
    assert code == 1, text
    assert "decode_graph_128 on cu128: WORSE: no effect, recorded as improves" in text
    assert "custom_all_reduce on cu128: WORSE: wrong output, recorded as slower" in text
    assert "token 7 is wrong" in text
    assert failures(text) == {"decode_graph_128-cu128", "custom_all_reduce-cu128"}
    assert failures(judge_folder(tmp_path, "--strict-outcomes")[1]) == {
        "decode_graph_128-cu128", "custom_all_reduce-cu128", "torch_symmetric_memory-cu128",
    }


def failures(text: str) -> set[str]:
    return set(re.findall(r"^FAILED .*test_outcome\[([\w-]+)\]", text, re.MULTILINE))


def test_without_a_right_output_no_speed_counts(judge_folder: Suite, tmp_path: Path) -> None:
    write_tried(tmp_path, "pcie_ipc", 200.0)
    write_correctness(correctness("pcie_ipc", replay=None, not_checked="the judge did not start"), tmp_path)
    code, text = judge_folder(tmp_path, "--deployment", "pcie_ipc")
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "correctness was not checked" in text
    assert "the judge did not start" in text
    (tmp_path / "pcie_ipc.correctness.json").unlink()
    code, text = judge_folder(tmp_path, "--deployment", "pcie_ipc")
    assert code == 4, text  # nothing of it can be judged, which must not look like a pass
    assert "no check that its output is right" in text
    assert "improves" not in text
    (tmp_path / "pcie_ipc.correctness.json").write_text("{")
    code, text = judge_folder(tmp_path, "--deployment", "pcie_ipc")
    assert code == 4, text
    assert "Traceback" not in text
    assert "pcie_ipc.correctness.json:1: not JSON" in text


def test_too_few_starts_of_the_reference_are_skipped_with_what_to_do(judge_folder: Suite, tmp_path: Path) -> None:
    write_starts(tmp_path, "pcie_ipc", 120.0)
    write_starts(tmp_path, "baseline_bs128", 89.5, count=2)
    write_correctness(correctness("pcie_ipc"), tmp_path)
    code, text = judge_folder(tmp_path, "--deployment", "pcie_ipc")
    assert code == 0, text
    assert "baseline_bs128 has 2 starts here and no baseline: give --starts 10" in text


def test_every_approach_is_collected_on_both_stacks_without_a_gpu(suite: Suite) -> None:
    code, text = suite("-m", "perf", TESTS, "-q", "--box=pcie_blackwell", "--collect-only")
    assert code == 0, text
    for name in re.findall(r"^\[approaches\.(\w+)\]", FILE.read_text(encoding="utf-8"), re.MULTILINE):
        assert f"test_outcome[{name}-cu128]" in text
        assert f"test_outcome[{name}-cu130]" in text


@pytest.mark.parametrize(
    ("box", "said"), [("cpu", "those of box pcie_blackwell"), ("pcie_blackwell", "needs 8 x RTX PRO 6000 Blackwell")]
)
def test_where_no_approach_can_be_tried_the_reason_is_told(
    suite: Suite, tmp_path: Path, box: str, said: str
) -> None:
    from fixtures.deployments import load_box
    from fixtures.deployments.hardware import detect, shortfall

    if box != "cpu" and shortfall(load_box(box).needs, detect()) is None:
        pytest.skip("this machine is the box: here the approaches are tried")
    code, text = suite("-m", "perf", TESTS, "-rs", f"--box={box}", f"--results={tmp_path / 'r'}")
    assert code == 4, text
    assert said in text
    assert "passed" not in text
    assert "failed" not in text


def test_outputs_of_what_is_not_timed_from_records(suite: Suite, tmp_path: Path) -> None:
    """The ways to load: one is right, one wrong, one was not checked, of one there is no check; a timed one has no
    such question."""
    ways = ("load_prefetch", "load_threads_16", "load_fastsafetensors", "load_instanttensor")
    for name in (*ways, "baseline_bs128"):
        write_starts(tmp_path, name, 89.5, count=1)
    right, wrong, unknown, _ = (correctness(name, all_reduce=()) for name in ways)
    write_correctness(right, tmp_path)
    alarm = ReplayChecked(2048, 4.0, 0.05, ("prompt-3: replay regret: token 7 is wrong",))
    write_correctness(replace(wrong, replay=alarm), tmp_path)
    write_correctness(replace(unknown, replay=None, not_checked="the judge did not start"), tmp_path)
    given = (f"--from-results={tmp_path}", f"--baselines={tmp_path / 'none'}", "perf_tests/test_outputs.py")
    code, text = suite("-m", "perf", "-rsfpE", "--box=pcie_blackwell", *given)
    assert code == 1, text
    outcomes = dict(re.findall(r"^(PASSED|FAILED) .*test_outputs\[(\w+)\]", text, re.MULTILINE))
    assert outcomes == {"PASSED": "load_prefetch", "FAILED": "load_threads_16"}
    assert "load_threads_16: wrong output: prompt-3: replay regret: token 7 is wrong" in text
    assert "load_fastsafetensors: outputs not checked: the judge did not start" in text
    assert "load_instanttensor: outputs not checked: no check is on record" in text
    assert "baseline_bs128]" not in text
