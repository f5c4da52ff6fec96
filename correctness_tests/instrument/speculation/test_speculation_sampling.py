"""The distribution test: power against faults of a sampled verify, and no alarm without one.

A simulated chain over a small random model: drafts from a noisy copy of the model, accepted and corrected by the rules
of speculative sampling (Leviathan et al. 2023), each fault being one line of it left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from sampled_draws import Left, judge_marginals, leaves, marginals, probabilities

VOCABULARY, STEPS, SAMPLES = 24, 3, 5000
TEMPERATURE, TOP_P = 0.8, 0.9
Distribution = np.ndarray


@functools.cache
def logits(prefix: tuple[int, ...], draft: bool) -> Distribution:
    seed = abs(hash((prefix, 7))) % 2**32
    exact = np.random.default_rng(seed).normal(0, 1.6, VOCABULARY)
    return exact + np.random.default_rng(seed + 1).normal(0, 0.8, VOCABULARY) if draft else exact


@functools.cache
def distribution(prefix: tuple[int, ...], draft: bool, temperature: float, top_p: float) -> Distribution:
    row = dict(enumerate(logits(prefix, draft).tolist()))
    result = np.zeros(VOCABULARY)
    for token, share in probabilities(row, temperature=temperature, top_p=top_p).items():
        result[token] = share
    return result


def speculate(draw: np.random.Generator, fault: str) -> tuple[int, ...]:
    """The accepted drafts and the bonus token of one verify pass, then plain tokens up to STEPS + 1."""
    temperature = 1.0 if fault == "temperature ignored" else TEMPERATURE
    top_p = 1.0 if fault == "top_p ignored" else TOP_P
    target = functools.partial(distribution, draft=False, temperature=temperature, top_p=top_p)
    output: tuple[int, ...] = ()
    for _ in range(STEPS):
        p = target(output)
        if fault == "greedy":
            output += (int(p.argmax()),)
            continue
        q = distribution(output, True, temperature, 1.0)
        token = int(draw.choice(VOCABULARY, p=q))
        ratio = p[token] if fault == "draft probability taken as 1" else p[token] / q[token]
        if draw.random() < ratio:
            output += (token,)
            continue
        residual = p if fault == "residual not subtracted" else np.maximum(p - q, 0)
        output += (int(draw.choice(VOCABULARY, p=residual / residual.sum())),)
        break
    while len(output) <= STEPS:
        output += (int(draw.choice(VOCABULARY, p=target(output))),)
    return output


def after(prefix: tuple[int, ...]) -> Left:
    return leaves(dict(enumerate(logits(prefix, False).tolist())), temperature=TEMPERATURE, top_p=TOP_P)


def alarm(seed: int, fault: str, samples: int = SAMPLES) -> bool:
    draw = np.random.default_rng(seed)
    outputs = [speculate(draw, fault) for _ in range(samples)]
    return bool(judge_marginals("simulated", marginals(outputs, after, STEPS + 1)))


def test_a_right_verify_never_alarms() -> None:
    assert not any(alarm(seed, "none", 1500) for seed in range(12))


@pytest.mark.parametrize(
    "fault",
    ["greedy", "temperature ignored", "top_p ignored", "residual not subtracted", "draft probability taken as 1"],
)
def test_a_wrong_verify_is_caught(fault: str) -> None:
    assert alarm(1, fault)


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        ({}, {0, 1, 2, 3}), ({"top_k": 2}, {0, 1}), ({"top_p": 0.6}, {0, 1}), ({"min_p": 0.3}, {0, 1}),
        ({"top_k": 1}, {0}),
    ],
)
def test_what_is_sampled_from(sampling: dict[str, float], left: set[int]) -> None:
    row = {0: np.log(0.5), 1: np.log(0.3), 2: np.log(0.14), 3: np.log(0.06)}
    found = probabilities(row, **sampling)
    assert set(found) == left
    assert sum(found.values()) == pytest.approx(1)


def test_tokens_that_cannot_come_are_caught_however_rare() -> None:
    build: Callable[[int], list[tuple[int, ...]]] = lambda odd: [(0,)] * (1000 - odd) + [(9,)] * odd  # noqa: E731
    assert not judge_marginals("x", marginals(build(0), lambda _: Left({0: 1.0}), 1))
    assert judge_marginals("x", marginals(build(1), lambda _: Left({0: 1.0}), 1))


@pytest.mark.parametrize(
    ("sampling", "sure", "open_yet"),
    [
        ({}, {0, 1, 2, 3}, set()), ({"top_k": 2}, {0, 1}, set()), ({"top_k": 3}, {0, 1}, {2, 3}),
        ({"top_k": 4}, {0, 1, 2, 3}, set()), ({"top_p": 0.75}, {0, 1}, set()), ({"top_p": 0.8}, {0, 1}, {2}),
        ({"top_p": 0.9}, {0, 1, 2}, {3}), ({"min_p": 0.3}, {0, 1}, set()), ({"min_p": 0.6}, {0}, {1}),
        ({"min_p": 1.0}, {0}, set()),
    ],
)
def test_what_noise_leaves_to_draw_from(sampling: dict[str, float], sure: set[int], open_yet: set[int]) -> None:
    row = {0: math.log(0.5), 1: math.log(0.3), 2: math.log(0.101), 3: math.log(0.099)}
    found = leaves(row, **sampling)
    assert (set(found.sure), set(found.open)) == (sure, open_yet)
    assert sum(found.sure.values()) == pytest.approx(1)
    if 1 in sure:
        assert found.sure[0] / found.sure[1] == pytest.approx(5 / 3)


def test_a_cut_that_noise_moves_does_not_alarm() -> None:
    """The plain server itself, in another batch shape: the fourth token is left to draw from, or it is not."""
    draw = np.random.default_rng(5)
    row = {0: math.log(0.5), 1: math.log(0.3), 2: math.log(0.101), 3: math.log(0.099)}
    sampling = {"top_p": 0.9}
    moved = {token: score + (0.02 if token == 3 else 0) for token, score in row.items()}
    there = probabilities(moved, **sampling)
    assert set(probabilities(row, **sampling)) != set(there)
    outputs = [(int(draw.choice(list(there), p=list(there.values()))),) for _ in range(2000)]
    hard = lambda prefix: Left(probabilities(row, **sampling))  # noqa: E731
    assert judge_marginals("x", marginals(outputs, hard, 1)), "without the rule"
    (found,) = marginals(outputs, lambda prefix: leaves(row, **sampling), 1)
    assert found.samples > 1500
    assert not judge_marginals("x", [found])
    wrong = [(0,) if output == (1,) and draw.random() < 0.3 else output for output in outputs]
    assert judge_marginals("x", marginals(wrong, lambda prefix: leaves(row, **sampling), 1))
