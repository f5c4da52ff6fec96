"""Does the four-arm test name the right cause when one is planted, and none when there is none?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.campaign.causal import ARMS, DEPLOYMENTS, CausalArm, causal_test
from fixtures.campaign.steps import attribute
from fixtures.deployments.loading import load_box
from fixtures.errors import MeasurementFailed


def planted(
    graph: float = 0.0, tokens: float = 0.0, interaction: float = 0.0, noise: float = 0.005, starts: int = 6
) -> dict[CausalArm, list[float]]:
    """Four arms around 82 tok/s with planted effects, as shares, and a noise of that coefficient of
    variation."""
    random = np.random.default_rng(6)
    arms: dict[CausalArm, list[float]] = {}
    for arm in ARMS:
        narrow, large = arm[0] == "128", arm[1] == "large"
        log = math.log(82) + narrow * math.log1p(graph) + large * math.log1p(tokens)
        log += (narrow and large) * math.log1p(interaction)
        arms[arm] = [math.exp(log + each) for each in random.normal(0, noise, starts)]
    return arms


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ({"graph": 0.09}, "refuted"),
        ({"tokens": 0.09}, "holds"),
        ({"graph": 0.09, "tokens": 0.09}, "Both causes"),
        ({"interaction": 0.09}, "act together"),
        ({}, "no gain to explain"),
        ({"graph": 0.09, "noise": 0.2}, "Too noisy"),
    ],
)
def test_the_planted_cause_is_named(effects: dict[str, float], said: str) -> None:
    found = causal_test(planted(**effects))
    assert said in found.explanation
    for effect, name in ((found.graph, "graph"), (found.tokens, "tokens")):
        if "interaction" not in effects:
            assert effect.low <= effects.get(name, 0.0) <= effect.high


def test_the_interval_covers_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        arms = {arm: list(82 * np.exp(random.normal(0, 0.02, 4))) for arm in ARMS}
        covered += not causal_test(arms).graph.seen
    assert 0.92 <= covered / 400 <= 0.98


@settings(deadline=None)
@given(st.floats(0.5, 2.0))
def test_a_factor_on_every_arm_changes_nothing(factor: float) -> None:
    arms = planted(graph=0.09)
    scaled = {arm: [value * factor for value in values] for arm, values in arms.items()}
    one, other = causal_test(arms), causal_test(scaled)
    assert other.graph.change == pytest.approx(one.graph.change)
    assert other.interaction.low == pytest.approx(one.interaction.low)


def test_exchanging_the_graphs_reverses_the_effect() -> None:
    arms = planted(graph=0.09, noise=0.0)
    swapped: dict[CausalArm, list[float]] = {
        ("128" if graph == "512" else "512", tokens): values for (graph, tokens), values in arms.items()
    }
    assert causal_test(swapped).graph.change == pytest.approx(1 / 1.09 - 1)


@pytest.mark.parametrize("bad", [[], [82.0], [82.0, 0.0], [82.0, math.nan], [82.0, -1.0]])
def test_what_is_no_evidence_is_refused(bad: list[float]) -> None:
    arms = planted()
    arms["128", "large"] = bad
    with pytest.raises(MeasurementFailed, match="graph max batch 128, large max total tokens"):
        causal_test(arms)


def test_the_arms_differ_in_nothing_else() -> None:
    """The deployments of the four arms: two options crossed, everything else the same."""
    box = load_box("pcie_blackwell")
    arms = {arm: dict(box.deployment(name).options) for arm, name in DEPLOYMENTS.items()}
    graphs = {arm: options.pop("decode_graph_max_batch") for arm, options in arms.items()}
    tokens = {arm: options.pop("max_total_tokens") for arm, options in arms.items()}
    assert all(str(graphs[arm]) == arm[0] for arm in ARMS)
    assert tokens["512", "small"] == tokens["128", "small"] < tokens["512", "large"] == tokens["128", "large"]
    first, *others = arms.values()
    assert all(other == first for other in others)


seconds = st.floats(1e-6, 10.0)


@settings(deadline=None)
@given(seconds, st.floats(0, 1), st.floats(0, 5), st.floats(0, 5))
def test_attribution_adds_up(target: float, share: float, draft: float, rest: float) -> None:
    communication = target * share
    step = target * (1 + draft + rest)
    found = attribute(step, target, communication, target * draft)
    assert found.communication + found.compute + found.draft + found.rest == pytest.approx(1)
    assert min(found.communication, found.compute, found.draft, found.rest) >= 0
    assert found.communication * step == pytest.approx(communication, rel=1e-6, abs=1e-12)


def test_attribution_of_the_campaign_s_verify_pass() -> None:
    found = attribute(31e-3, 30e-3, 0.97 * 30e-3, 0.5e-3)
    assert found.told() == "step 31.00 ms: communication 94%, compute 3%, draft 2%, rest 2%"


@pytest.mark.parametrize(
    ("step", "target", "communication", "draft", "said"),
    [
        (10e-3, 9e-3, 9.5e-3, 0.0, "not of the same pass"),
        (10e-3, 9e-3, 1e-3, 2e-3, "not of the same steps"),
        (math.nan, 9e-3, 1e-3, 0.0, "step"),
        (10e-3, 0.0, 0.0, 0.0, "target pass"),
        (10e-3, 9e-3, -1e-3, 0.0, "communication"),
    ],
)
def test_attribution_refuses_parts_that_do_not_fit(
    step: float, target: float, communication: float, draft: float, said: str
) -> None:
    with pytest.raises(MeasurementFailed, match=said):
        attribute(step, target, communication, draft)
