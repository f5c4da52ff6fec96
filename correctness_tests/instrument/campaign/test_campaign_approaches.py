"""Is the whole campaign on file, and is a wrong approaches file refused in one clear line?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.campaign.approach import Approach
from fixtures.campaign.loading import FILE, ApproachError, load_approaches
from fixtures.campaign.outcomes import Outcome
from fixtures.deployments.loading import load_box

REPORTED_ON_CU128 = {
    "eagle3": (Outcome.SLOWER, "54.1 tok/s"),
    "flashinfer_fusion": (Outcome.UNSUPPORTED, "no SM120"),
    "custom_all_reduce": (Outcome.SLOWER, "38 tok/s"),
    "torch_symmetric_memory": (Outcome.UNSUPPORTED, "no lookup table"),
    "expert_parallel": (Outcome.CRASHES, "assertion error, then out of memory"),
    "decode_graph_128": (Outcome.IMPROVES, "82 -> 89.5 tok/s"),
}
"""What the campaign reported. A measured outcome may replace one of these, with its record, and then moves
out."""
NOT_TRIED_ON_CU128 = {"cuda_13", "pcie_ipc", "nccl_tuning", "nccl_symmetric_memory", "mscclpp"}
REPORTED_SAVINGS_MS = {
    "flashinfer_fusion": (2, 8),
    "custom_all_reduce": (10, 18),
    "torch_symmetric_memory": (5, 10),
}


@pytest.fixture(scope="module")
def approaches() -> dict[str, Approach]:
    return load_approaches()


def test_the_seed_campaign_is_whole(approaches: dict[str, Approach]) -> None:
    """Changing one recorded outcome by hand fails here, unless it comes with a measured record."""
    assert set(approaches) == set(REPORTED_ON_CU128) | NOT_TRIED_ON_CU128
    for name, (outcome, said) in REPORTED_ON_CU128.items():
        recorded = approaches[name].outcomes["cu128"]
        if recorded.provenance == "measured":
            assert recorded.record, name
            continue
        assert recorded.outcome is outcome, name
        assert said in f"{recorded.figure} {recorded.note}", name
        assert recorded.provenance == "reported", name
        assert recorded.versions == {"cuda": "12.8", "driver": "590.48.01"}, name
    for name, each in approaches.items():
        for stack, recorded in each.outcomes.items():
            seed = stack == "cu128" and name in REPORTED_ON_CU128
            if not seed and recorded.provenance != "measured":
                assert recorded.outcome is Outcome.NOT_TRIED, f"{name} on {stack}"


def test_expected_savings_are_those_of_the_campaign(approaches: dict[str, Approach]) -> None:
    for name, saving in REPORTED_SAVINGS_MS.items():
        expectation = approaches[name].expectation
        assert expectation is not None
        assert expectation.saving_ms == saving
        assert expectation.provenance == "reported"
    pcie_ipc = approaches["pcie_ipc"].expectation
    assert pcie_ipc is not None
    assert pcie_ipc.all_reduce_us == (35, 5)


def test_every_deployment_exists_on_the_box_and_every_arm_is_named() -> None:
    box = load_box("pcie_blackwell")
    approaches = load_approaches(deployments=box.deployments)
    used = {name for each in approaches.values() for name in each.deployments}
    arms = {name for name, each in box.deployments.items() if each.timed}
    assert used == arms, "a deployment of the box belongs to no approach"


def test_one_changed_outcome_is_noticed(tmp_path: Path) -> None:
    """The control of `test_the_seed_campaign_is_whole`: it fails on a file changed by hand."""
    text = FILE.read_text(encoding="utf-8")
    for name in REPORTED_ON_CU128:
        head = f"[approaches.{name}.outcomes.cu128]\noutcome = "
        changed = re.sub(re.escape(head) + '"[a-z ]+"', head + '"no effect"', text)
        assert changed != text
        path = tmp_path / "approaches.toml"
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(AssertionError, match=name):
            test_the_seed_campaign_is_whole(load_approaches(path))


def _replace(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return change


BAD: dict[str, tuple[Callable[[str], str], str, str, str]] = {
    "syntax": (_replace('title = "EAGLE-3', 'title = EAGLE-3"'), "line", "", "correct that line"),
    "unknown key": (_replace("next_step =", "nextstep ="), "nextstep", "measure the verify", "next_step"),
    "unknown outcome": (
        _replace('outcome = "slower"', 'outcome = "slow"'),
        "approaches.eagle3.outcomes.cu128.outcome",
        "'slow'",
        "slower",
    ),
    "wrong type": (_replace('deployments = ["pcie_ipc",', "deployments = [7,"), "deployments", "7", "text in quotes"),
    "missing key": (_replace("idea = ", "# idea = "), "approaches.eagle3", "idea", "add it"),
    "likelihood above 1": (_replace("cu130 = 0.6", "cu130 = 6"), "likelihood.cu130", "6", "at most 1"),
    "unknown blocker": (
        _replace('blocked_by = ["cuda_13"]', 'blocked_by = ["cuda_14"]'),
        "approaches.pcie_ipc.blocked_by",
        "'cuda_14'",
        "'cuda_13'",
    ),
    "circle": (
        _replace('enables = ["pcie_ipc"', 'blocked_by = ["pcie_ipc"]\nenables = ["pcie_ipc"'),
        "blocked_by",
        "",
        "circle",
    ),
    "blocks itself": (
        _replace('blocked_by = ["cuda_13"]', 'blocked_by = ["pcie_ipc"]'),
        "approaches.pcie_ipc.blocked_by",
        "'pcie_ipc'",
        "remove it",
    ),
    "unknown deployment": (
        _replace('"pcie_ipc_eagle3"]', '"pcie_ipc_eagle4"]'),
        "approaches.pcie_ipc.deployments",
        "'pcie_ipc_eagle4'",
        "pcie_ipc_eagle3",
    ),
    "compared with nothing": (
        _replace('against = { baseline_bs128 = "cu128" }', 'against = { baseline_bs128 = "cu129" }'),
        "approaches.cuda_13.against.baseline_bs128",
        "'cu129'",
        "did you mean 'cu128'",
    ),
    "compared, but not tried": (
        _replace('against = { baseline_bs128 = "cu128" }', 'against = { eagle3 = "cu128" }'),
        "approaches.cuda_13.against.eagle3",
        "'cu128'",
        "no deployment of this approach",
    ),
    "compared with itself": (
        _replace('against = { baseline_bs128 = "cu128" }', 'against = { baseline_bs128 = "baseline_bs128" }'),
        "approaches.cuda_13.against.baseline_bs128",
        "'baseline_bs128'",
        "itself",
    ),
    "unknown all-reduce": (
        _replace('all_reduce = ["sglang_pcie_ipc"]', 'all_reduce = ["pcie_ipc"]'),
        "approaches.pcie_ipc.all_reduce",
        "'pcie_ipc'",
        "no such all-reduce back end",
    ),
    "measured without record": (
        _replace('provenance = "reported"\nversions', 'provenance = "measured"\nversions'),
        "approaches.eagle3.outcomes.cu128.provenance",
        "'measured'",
        "needs record",
    ),
    "reported with record": (
        _replace('provenance = "reported"\nversions', 'provenance = "reported"\nrecord = "a"\nversions'),
        "approaches.eagle3.outcomes.cu128.record",
        "'a'",
        "measured",
    ),
    "outcome without provenance": (
        _replace('provenance = "reported"\nversions', "versions"),
        "approaches.eagle3.outcomes.cu128.outcome",
        "'slower'",
        "provenance",
    ),
    "evidence of nothing": (
        _replace('outcome = "not tried"', 'outcome = "not tried"\ndate = "2026-07-01"'),
        "outcomes.cu130.date",
        "2026-07-01",
        "remove it",
    ),
    "saving the wrong way round": (_replace("[2, 8]", "[8, 2]"), "saving_ms", "[8, 2]", "order it"),
    "saving of a whole pass": (_replace("[2, 8]", "[2, 31]"), "saving_ms", "[2, 31]", "30 ms"),
    "latency of zero": (_replace("[35, 5]", "[35, 0]"), "all_reduce_us", "[35, 0]", "above 0"),
    "two expectations": (
        _replace("saving_ms = [2, 8]", "saving_ms = [2, 8], all_reduce_us = [9, 8]"),
        "expected",
        "saving_ms",
        "state one",
    ),
    **{
        f"no such stack in {key}": (_replace(old, old.replace("cu130", "cu13x")), key, "cu13x", "did you mean 'cu1")
        for key, old in {
            "outcomes": "[approaches.eagle3.outcomes.cu130]",
            "likelihood": "likelihood = { cu128 = 0.1, cu130 = 0.3 }",
            "blocked_because": 'cu130 = "an all-reduce that is quick at 42',
        }.items()
    },
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_file_is_one_line_with_file_key_value_and_fix(case: str, tmp_path: Path) -> None:
    change, key, value, fix = BAD[case]
    path = tmp_path / "approaches.toml"
    path.write_text(change(FILE.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ApproachError) as caught:
        load_approaches(path, deployments=load_box("pcie_blackwell").deployments)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(path))
    for part in (key, value, fix):
        assert part in line, line


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(ApproachError, match="cannot be read"):
        load_approaches(tmp_path / "none.toml")
    path = tmp_path / "approaches.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ApproachError, match="not UTF-8 text"):
        load_approaches(path)
