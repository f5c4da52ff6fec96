"""Who may spend how much of the 1 % of unchanged runs that may be blocked, and that all together spend no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fixtures.deployments import load_box
from fixtures.deployments.deployment import Box
from fixtures.errors import DeploymentError
from fixtures.gate.decide import decide
from fixtures.gate.power import joint_alarm, levels
from fixtures.gate.question import HEADLINE, Question, budget
from fixtures.gate.spec import MetricSpec
from fixtures.gate.unchanged import blocked_runs, gpu_box
from fixtures.session.budget import budget_of, check_headline
from fixtures.session.rank_starts import Ranks

GPU, CPU = load_box("pcie_blackwell"), load_box("cpu")
KEYS = [f"w/{at}" for at in range(20)]
RANKS = Ranks("gloo", "cpu", 2, (("eager", 1024), ("eager", 4096)))


def test_the_headline_metrics_come_first_and_everybody_is_paid():
    found = budget((Question("d", key) for key in KEYS), KEYS[:4])
    assert sum(found.shares.values()) == pytest.approx(0.01)
    assert found.share("d", KEYS[0]) == pytest.approx(0.01 * HEADLINE / 4)
    assert found.share("d", KEYS[-1]) == pytest.approx(0.01 * (1 - HEADLINE) / 16)
    assert "at most 1 % of unchanged runs are blocked: 0.8 % for 4 headline questions, 0.2 % each" in str(found)


@pytest.mark.parametrize("headline", [(), KEYS])
def test_nothing_is_kept_for_questions_that_nobody_asks(headline: list[str]):
    found = budget((Question("d", key) for key in KEYS), headline)
    assert list(found.shares.values()) == pytest.approx([0.01 / 20] * 20)


@pytest.mark.parametrize(("box", "stack"), [(CPU, "cpu"), (GPU, "cu128"), (GPU, "cu130")])
@pytest.mark.parametrize("paired", [False, True])
def test_the_shares_of_all_that_can_fail_a_run_add_up_to_one_percent(box: Box, stack: str, paired: bool):
    found = budget_of(box, stack, box.deployments, [RANKS], paired=paired)
    assert sum(found.shares.values()) == pytest.approx(0.01)
    assert all(share > 0 for share in found.shares.values())
    assert sum(each.of == RANKS.name for each in found.shares) == 2
    assert any(" against " in each.of for each in found.shares) is (box is GPU and not paired)


def test_one_deployment_has_more_to_spend_than_a_whole_box():
    alone, whole = (budget_of(GPU, "cu130", names) for names in ({"eagle3"}, GPU.deployments))
    key = "single_stream/decode_tok_s"
    assert alone.share("eagle3", key) > 10 * whole.share("eagle3", key) > 0
    assert whole.share("eagle3", key) > 10 * whole.share("eagle3", "long_prompt/itl_ms") > 0


def test_exact_and_counted_metrics_spend_nothing_and_are_judged_all_the_same():
    shares = budget_of(GPU, "cu130", GPU.deployments)
    assert not {"kv_tokens", "single_stream/accept_length"} & {each.key for each in shares.shares}
    exact = MetricSpec("kv_tokens", "exact", "higher")
    assert decide(exact, [100.0] * 10, [99.0], share=shares.share("eagle3", "kv_tokens")).verdict == "regression"


def test_a_timing_metric_without_a_share_fails_closed():
    found = decide(MetricSpec("w/new_ms", "timing", "lower"), [1.0, 1.1] * 5, [2.0] * 5, share=0.0)
    assert found.verdict == "measurement failed"
    assert "without a share" in found.reason


@pytest.mark.parametrize("box", [CPU, GPU])
def test_the_headline_of_a_box_is_measured_there(box: Box):
    check_headline(box)
    assert 4 <= len(box.headline) <= 5


def test_a_headline_metric_that_nothing_measures_is_one_line():
    bad = replace(CPU, headline=("single_stream/tokps",))
    with pytest.raises(DeploymentError, match="headline: 'single_stream/tokps': no deployment measures it"):
        check_headline(bad)


@pytest.mark.parametrize("share", [0.01, 0.001, 5e-5, 5e-6])
def test_all_ways_to_call_a_metric_spend_no_more_than_its_share(share: float):
    for first, fresh in ((5, 5), (5, 10), (10, 8)):
        found = levels(share, 10, first, fresh)
        rho = 0.1 / np.sqrt((0.1 + 1 / first) * (0.1 + 1 / fresh))
        confirmed = sum(joint_alarm(found.stage1, level, rho) for level in (found.stage2, found.far))
        assert max(confirmed, found.few) + found.look + found.single <= share * 1.0001
    assert joint_alarm(0.05, 0.01, 0.0) == pytest.approx(0.0005)


def test_unchanged_runs_of_the_gpu_boxs_size_are_blocked_once_in_a_hundred_at_most():
    """All judges together. `python -m fixtures.gate.evaluate` does it with 2,000 runs."""
    whole, paired = gpu_box()
    assert len(whole.shares) > 650
    assert sum(whole.shares.values()) == pytest.approx(0.01) == sum(paired.shares.values())
    found = blocked_runs(60, np.random.default_rng(7))
    assert set(found) == {"confirmed", "one look", "paired"}
    assert max(found.values()) <= 0.04  # 3 of 60: binomial, 1 % each, p < 0.004
