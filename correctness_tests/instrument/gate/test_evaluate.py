"""How good the gate is, on real unchanged runs, labelled changes and whole suites of metrics."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fixtures.gate import evaluate as evaluation
from fixtures.gate.corpora import load_gpu, load_labelled, load_sap
from fixtures.gate.decide import decide
from fixtures.gate.evaluate import LABELLED, TOGETHER, Score, evaluate
from fixtures.gate.power import wanted_starts
from fixtures.gate.rivals import THIS_GATE, gate_rows
from fixtures.gate.spec import MetricSpec
from fixtures.gate.statistics import Floats

pytestmark = pytest.mark.xdist_group("gate evaluation")

DATA = Path(__file__).parents[3] / "fixtures" / "gate" / "data"
MS = MetricSpec("w/x", "timing", "lower", "ms")
FEW = ("--rows", "50", "--runs", "2")
SIGN = {"regression": 1, "improvement": -1}


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, Score]]:
    return evaluate(DATA)


class TestThisGate:
    def test_false_alarms(self, scores: dict[str, dict[str, Score]]):
        found = scores[THIS_GATE][TOGETHER]["alarms"]
        assert found.total >= 10_000
        assert found.rate <= 0.001
        assert found.upper <= 0.002

    def test_false_alarms_in_the_order_of_time(self, scores: dict[str, dict[str, Score]]):
        assert scores[THIS_GATE]["SAP in time order"]["alarms"].rate <= 0.002

    @pytest.mark.parametrize("data", [TOGETHER, "SAP", "GPU training"])
    def test_power_where_the_baseline_is_quiet(self, scores: dict[str, dict[str, Score]], data: str):
        found = scores[THIS_GATE][data]
        assert found[0.03].rate >= 0.55
        assert found[0.05].rate >= 0.90
        assert found[0.10].rate >= 0.99

    def test_labelled_changes(self, scores: dict[str, dict[str, Score]]):
        found, others = (scores[THIS_GATE][LABELLED][each] for each in ("labelled", "others"))
        assert (found.hits, found.total, others.total) == (5, 5, 20)
        assert others.hits <= 1

    @pytest.mark.parametrize("rival", ["mean > 5 %", "mean > 5 %, all starts"])
    def test_better_than_a_mean_on_both_counts(self, scores: dict[str, dict[str, Score]], rival: str):
        ours, theirs = scores[THIS_GATE][TOGETHER], scores[rival][TOGETHER]
        assert ours["alarms"].rate < theirs["alarms"].rate / 10
        assert ours[0.03].rate > theirs[0.03].rate * 2

    def test_one_start_first_alarms_no_more_often(self, scores: dict[str, dict[str, Score]]):
        assert scores["this gate, 1 start first"][TOGETHER]["alarms"].rate <= 0.001


def test_a_gate_that_does_not_compare_fails_the_evaluation(monkeypatch: pytest.MonkeyPatch):
    """The evaluation measures: with the comparison taken out, nothing is found."""
    blind = {THIS_GATE: lambda rows: np.zeros(len(rows.values), dtype=bool)}
    monkeypatch.setattr(evaluation, "GATES", blind)
    found = evaluate(DATA, draws=1)[THIS_GATE]
    assert [found[TOGETHER][share].rate for share in (0.03, 0.05, 0.10)] == [0.0, 0.0, 0.0]
    assert found[LABELLED]["labelled"].hits == 0


def test_the_command_is_deterministic_and_prints_every_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    few = evaluation.GATES
    monkeypatch.setattr(evaluation, "GATES", {name: few[name] for name in (THIS_GATE, "mean > 5 %")})
    monkeypatch.setattr(evaluation.evaluate, "__defaults__", (0, 1))
    told = []
    for seed in "334":
        assert evaluation.main([str(DATA), "--seed", seed, *FEW]) == 0
        told.append(capsys.readouterr().out)
    first, second, other = told
    assert first == second != other
    assert "Clopper-Pearson" in first
    assert "mean > 5 %" in first
    assert "5 of 2           sessions, sd 2 %" in first
    assert "unchanged runs that are blocked, of 2 of the GPU box's size" in first


def test_data_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert evaluation.main([str(tmp_path / "none")]) == 2
    assert evaluation.main([str(tmp_path)]) == 2
    copy = tmp_path / "data"
    shutil.copytree(DATA, copy)
    (copy / "sap_hana_aa_runs.csv.gz").write_bytes(b"no gzip")
    assert evaluation.main([str(copy)]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 3
    assert "sap_hana_aa_runs.csv.gz" in errors[2]


def test_the_data_is_what_it_says():
    sap, gpu, labelled = load_sap(DATA), load_gpu(DATA), load_labelled(DATA)
    assert len(sap.groups) == 1200
    assert min(map(len, sap.groups)) == 25
    assert [len(runs) for runs in gpu.groups] == [10] * 41
    assert sum(series.change > 0 for series in labelled) == 5
    assert len(labelled) == 25


# --- The rows that simulations use are the gate that users get. ---


def test_rows_say_what_decide_says():
    sap, rng = load_sap(DATA), np.random.default_rng(11)
    checked = {1: 0, -1: 0, 0: 0}
    for share in (0.01, 0.001):
        for group in rng.permutation(len(sap.groups))[:150]:
            runs = sap.groups[group][rng.permutation(len(sap.groups[group]))[:25]]
            count = int(rng.choice([1, 3, 5, 7]))
            shift = float(rng.choice([0.0, 0.03, 0.06, 0.12, 0.4, -0.06, -0.4]))
            base, first, fresh = runs[:10], runs[10 : 10 + count] + shift, runs[-8:] + shift
            row = int(gate_rows(base[None], first[None], fresh[None], share)[0])
            asked = int(wanted_starts(base, first, share))
            found = decide(MS, np.exp(base), np.exp(first), np.exp(fresh[: min(asked, 8)]), share=share)
            assert row == SIGN.get(found.verdict, 0), found
            checked[row] += 1
    assert all(count >= 10 for count in checked.values())


# --- The whole suite: 12 metrics, and the share of unchanged runs that any of them blocks. ---

METRICS, RUNS = 12, 4000


def blocked_share(values: Floats) -> float:
    """`values`: costs (runs, metrics, starts). The share of runs with at least one regression."""
    flat = values.reshape(-1, values.shape[-1])
    found = gate_rows(flat[:, :10], flat[:, 10:15], flat[:, 15:], 0.01 / METRICS) > 0
    return float(found.reshape(values.shape[:2]).any(axis=1).mean())


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("noise", ["normal", "heavy tails"])
def test_a_suite_of_twelve_correlated_metrics_blocks_at_most_one_percent(correlation: float, noise: str):
    """A CV of 8 %, where the minimum effect of 2 % protects least."""
    rng = np.random.default_rng(2026)
    shape = (RUNS, METRICS, 25)
    draw = rng.standard_normal if noise == "normal" else lambda size: rng.standard_t(4, size) / np.sqrt(2)
    own, shared = draw(shape), draw((RUNS, 1, 25))
    values = 0.08 * (np.sqrt(1 - correlation) * own + np.sqrt(correlation) * shared)
    assert blocked_share(values) <= 0.01


def test_a_suite_of_twelve_real_series_blocks_at_most_one_percent():
    sap, rng = load_sap(DATA), np.random.default_rng(2026)
    values = np.array(
        [
            [rng.permutation(sap.groups[group])[:25] for group in rng.integers(0, len(sap.groups), METRICS)]
            for _ in range(RUNS)
        ]
    )
    assert blocked_share(values) <= 0.01


def test_without_the_correction_it_would_not_hold():
    """The control: the same simulation with every metric judged as if it were alone."""
    values = 0.08 * np.random.default_rng(2026).standard_normal((RUNS, METRICS, 25))
    flat = values.reshape(-1, 25)
    alone = gate_rows(flat[:, :10], flat[:, 10:15], flat[:, 15:], 0.01) > 0
    assert alone.reshape(RUNS, METRICS).any(axis=1).mean() > 0.01
