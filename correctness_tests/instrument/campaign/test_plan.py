"""Is the plan current, does it follow from what is on record, and is a change of either noticed?"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.campaign.approach import Approach, RecordedOutcome
from fixtures.campaign.causal import DEPLOYMENTS
from fixtures.campaign.loading import FILE, load_approaches
from fixtures.campaign.model.figures import BEST_PLAIN_TOK_S, target, value
from fixtures.campaign.model.hypotheses import project, rank, two_regimes
from fixtures.campaign.outcomes import Outcome
from fixtures.campaign.plan import BASELINES, FigureOnRecord, figures, figures_on_record, in_order, main, render
from fixtures.deployments.loading import load_box
from fixtures.gate.baselines import Baseline, BaselineMetric

BOX = load_box("pcie_blackwell")


@pytest.fixture(scope="module")
def approaches() -> dict[str, Approach]:
    return load_approaches()


@pytest.fixture
def copy(tmp_path: Path) -> list[str]:
    """A copy of the approaches and of the baselines with its own plan; the command's arguments for it."""
    shutil.copy(FILE, tmp_path / "approaches.toml")
    shutil.copytree(BASELINES, tmp_path / "baselines")
    arguments = [f"--approaches={tmp_path / 'approaches.toml'}", f"--baselines={tmp_path / 'baselines'}"]
    assert main(arguments) == 0
    return arguments


def test_the_committed_plan_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_an_outcome_changed_by_hand_makes_the_plan_out_of_date(
    copy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = tmp_path / "approaches.toml", tmp_path / "baselines" / "plan.md"
    assert main([*copy, "--check"]) == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('outcome = "unsupported"', 'outcome = "slower"', 1), encoding="utf-8")
    before = plan.read_text(encoding="utf-8")
    assert main([*copy, "--check"]) == 1
    assert re.search(r"out of date by \d+ lines: run python -m fixtures.campaign.plan", capsys.readouterr().err)
    assert plan.read_text(encoding="utf-8") == before, "--check must not write"
    assert main(copy) == 0
    assert main([*copy, "--check"]) == 0
    assert plan.read_text(encoding="utf-8") != before


def test_a_plan_changed_by_hand_or_missing_is_out_of_date(copy: list[str], tmp_path: Path) -> None:
    plan = tmp_path / "baselines" / "plan.md"
    plan.write_text(plan.read_text(encoding="utf-8") + "\nA remark.\n", encoding="utf-8")
    assert main([*copy, "--check"]) == 1
    plan.unlink()
    assert main([*copy, "--check"]) == 1


def test_a_bad_file_is_one_line_and_exit_code_2(
    copy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "approaches.toml").write_text("box = 7\n", encoding="utf-8")
    assert main(copy) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_approach_and_outcome_is_in_the_plan(approaches: Mapping[str, Approach]) -> None:
    text = render(BOX, approaches, [])
    tried = text.split("## What was tried")[1].split("###")[0]
    for each in approaches.values():
        row = next(line for line in tried.splitlines() if line.startswith(f"| {each.title} |"))
        for stack in ("cu128", "cu130"):
            assert str(each.outcome(stack)) in row
        assert not each.taught or each.taught in text
    for figure in ("82 tok/s", "89.5 tok/s", "167 tok/s", "42 us", "70 us", "84 us", "138 us"):
        assert figure in text, "the inverse of the model"


def test_next_is_in_order_of_expected_gain_with_blockers_first(approaches: Mapping[str, Approach]) -> None:
    ranked = rank(approaches, two_regimes())
    gains = [each.expected_gain for each in ranked if each.expected_gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert ranked[: len(gains)] == [each for each in ranked if each.expected_gain is not None]
    placed = [(each.approach.id, each.stack) for each in in_order(ranked)]
    assert sorted(placed) == sorted((each.approach.id, each.stack) for each in ranked)
    for each in ranked:
        for blocker in each.approach.blocked_by:
            if (blocker, each.stack) in placed:
                assert placed.index((blocker, each.stack)) < placed.index((each.approach.id, each.stack))
    assert placed[:2] == [("cuda_13", "cu130"), ("pcie_ipc", "cu130")]


def test_a_likelier_approach_comes_earlier(approaches: Mapping[str, Approach]) -> None:
    def place(likelihood: float) -> int:
        changed = replace(approaches["mscclpp"], likelihood={"cu128": 0.0, "cu130": likelihood})
        ranked = rank({**approaches, "mscclpp": changed}, two_regimes())
        return [each.approach.id for each in ranked].index("mscclpp")

    assert place(1.0) < place(0.02)


def test_what_was_tried_is_not_next_on_that_stack(approaches: Mapping[str, Approach]) -> None:
    tried = replace(
        approaches["pcie_ipc"],
        outcomes={**approaches["pcie_ipc"].outcomes, "cu130": RecordedOutcome(Outcome.IMPROVES)},
    )
    ranked = rank({**approaches, "pcie_ipc": tried}, two_regimes())
    assert ("pcie_ipc", "cu130") not in [(each.approach.id, each.stack) for each in ranked]


def test_what_ran_without_a_gain_promises_none_elsewhere(approaches: Mapping[str, Approach]) -> None:
    ranked = rank(approaches, two_regimes())
    custom = next(each for each in ranked if each.approach.id == "custom_all_reduce")
    assert (custom.gain, custom.refuted_on) == (0.0, "cu128")


def test_no_saving_alone_but_the_largest_makes_eagle3_pay(approaches: Mapping[str, Approach]) -> None:
    """Why the campaign's first approaches could not have paid even if they had worked."""
    model = two_regimes()
    for name in ("flashinfer_fusion", "torch_symmetric_memory"):
        expectation = approaches[name].expectation
        assert expectation is not None
        assert project(expectation, model).high.eagle3 < 89.5
    pcie_ipc = approaches["pcie_ipc"].expectation
    assert pcie_ipc is not None
    assert project(pcie_ipc, model).low.eagle3 > 167


def test_baselines_are_shown_with_their_provenance(
    approaches: Mapping[str, Approach],
) -> None:
    def metric(name: str, unit: str, **values: tuple[float, ...]) -> BaselineMetric:
        key = f"single_stream/{name}"
        return BaselineMetric(key, name, "single_stream", unit, "timing", "higher", **values)

    reported = [
        metric("decode_tok_s", "tok/s", reported=(82.0,)),
        metric("all_reduce_us", "us", reported=(300.0, 150.0)),
    ]
    measured = [metric("decode_tok_s", "tok/s", starts=(91.0, 89.0, 89.5))]
    baselines = [
        Baseline(
            "pcie_blackwell",
            stack,
            "baseline_bs512",
            "measured" if metrics is measured else "reported",
            "why",
            "2026-07-01T00:00:00Z",
            metrics={each.key: each for each in metrics},
        )
        for stack, metrics in (("cu128", reported), ("cu130", measured))
    ]
    text = render(BOX, approaches, [each for known in baselines for each in figures(known)])
    assert "| baseline_bs512 | cu128 | single_stream/decode_tok_s | 82 tok/s | reported |" in text
    assert "| 150 to 300 us | reported |" in text
    assert "The best rate measured is 89.5 tok/s: `baseline_bs512` on cu130 (measured, 3 starts)." in text
    assert "Nothing is measured on this machine yet" in render(BOX, approaches, figures(baselines[0]))
    assert "| baseline_bs512 | cu130 | single_stream/decode_tok_s | 89.5 tok/s | measured, 3 starts |" in text


def test_the_model_and_the_baselines_tell_the_same_figures() -> None:
    told = {
        ("baseline_bs512", "decode_tok_s"): target("plain_tok_s"),
        ("baseline_bs128", "decode_tok_s"): BEST_PLAIN_TOK_S,
        ("custom_all_reduce", "decode_tok_s"): target("custom_tok_s"),
        ("eagle3", "decode_tok_s"): target("eagle3_tok_s"),
        ("eagle3", "verify_ms"): target("verify_s") * 1e3,
        ("baseline_bs512", "all_reduces_per_pass"): value("all_reduces"),
        ("baseline_bs512", "bytes_per_all_reduce"): value("decode_bytes"),
        ("eagle3", "bytes_per_all_reduce"): value("verify_bytes"),
    }
    on_record = {
        (each.deployment, each.key.rsplit("/", 1)[-1]): each.values
        for each in figures_on_record(BASELINES, "pcie_blackwell")
        if each.reported and each.stack == "cu128"
    }
    both = told.keys() & on_record.keys()
    assert {name: on_record[name] for name in both} == {name: (pytest.approx(told[name]),) for name in both}
    assert both or not on_record


def test_the_causal_test_is_told_once_its_arms_are_measured(approaches: Mapping[str, Approach]) -> None:
    assert "It is not tested yet" in render(BOX, approaches, [])
    rates = {"512": (82.0, 82.2, 81.9), "128": (89.5, 89.3, 89.6)}
    measured = [
        FigureOnRecord("cu128", name, "single_stream/decode_tok_s", "tok/s", rates[arm[0]], False)
        for arm, name in DEPLOYMENTS.items()
    ]
    assert "The KV-cache explanation is refuted" in render(BOX, approaches, measured)
    assert "It is not tested yet" in render(BOX, approaches, measured[:3])
    reported = [replace(figure, reported=True) for figure in measured]
    assert "It is not tested yet" in render(BOX, approaches, reported)


def test_the_plan_has_no_line_that_depends_on_the_machine_or_the_day(
    approaches: Mapping[str, Approach],
) -> None:
    text = render(BOX, approaches, [])
    assert text == render(BOX, load_approaches(), [])
    assert str(Path.cwd()) not in text
    assert str(FILE.parent) not in text
