"""Each way of breaking the gate is noticed: a probe is something the gate must get right, each mutant must fail one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_cases import BASE, TOK_S, TTFT, starts

from fixtures.gate import decide as decide_module
from fixtures.gate import statistics
from fixtures.gate.decide import decide
from fixtures.gate.spec import POLICY, Judgement, MetricSpec, Starts

Decide = Callable[..., Judgement]


def flow(judge: Decide, values: Callable[[int], list[float]], metric: MetricSpec = TOK_S, **more: Any) -> Judgement:
    """A session in short: stage 1, and fresh starts if the gate asks for them."""
    ids = iter(range(1000))

    def launch(count: int) -> Starts:
        return Starts(tuple(values(count)), tuple(f"s{next(ids)}" for _ in range(count)))

    first = launch(5)
    found = judge(metric, BASE, first, **more)
    if found.needs_confirmation:
        found = judge(metric, BASE, first, launch(found.starts_wanted), **more)
    return found


def noise(centre: float, seed: int = 7) -> Callable[[int], list[float]]:
    rng = np.random.default_rng(seed)
    return lambda count: list(centre * np.exp(rng.normal(0, 0.01, count)))


def only_first_bad() -> Callable[[int], list[float]]:
    """Five slow starts, then normal ones: what a busy neighbour does."""
    calls = iter([95.0] + [100.0] * 10)
    rng = np.random.default_rng(3)
    return lambda count: list(next(calls) * np.exp(rng.normal(0, 0.005, count)))


def repeated(values: Iterable[float], times: int) -> Starts:
    """The requests of few starts: many values, few ids."""
    listed = list(values)
    return Starts(tuple(listed * times), tuple(f"s{i}" for i in range(len(listed))) * times)


PROBES: dict[str, Callable[[Decide], bool]] = {
    "a slowdown blocks": lambda judge: flow(judge, noise(92)).verdict == "regression",
    "a speedup does not": lambda judge: flow(judge, noise(108)).verdict == "improvement",
    "a rising latency blocks": lambda judge: flow(judge, noise(108), TTFT).verdict == "regression",
    "no change passes": lambda judge: flow(judge, noise(100)).verdict == "no change",
    "fresh starts clear": lambda judge: flow(judge, only_first_bad()).verdict == "no change",
    "a slowdown stays one": lambda judge: all(flow(judge, noise(95, seed)).blocks for seed in range(20)),
    "zeros are no baseline": lambda judge: judge(TOK_S, [0.0] * 10, BASE[:5]).verdict == "measurement failed",
    "machines are not mixed": lambda judge: (
        flow(judge, noise(50), incomparable=("machine: a -> b",)).verdict == "no comparable baseline"
    ),
    "requests are not starts": lambda judge: (
        judge(TOK_S, BASE, repeated(starts(100, 2, 5), 50)).verdict == "measurement failed"
    ),
    "starts are not used twice": lambda judge: (
        judge(TOK_S, BASE, Starts((90.0,) * 5, tuple("abcde")), Starts((90.0,) * 5, tuple("abcde"))).verdict
        == "measurement failed"
    ),
    "nothing is no pass": lambda judge: judge(TOK_S, BASE, []).blocks,
}


def comparator_disabled(*given: Any, **more: Any) -> Judgement:
    with pytest.MonkeyPatch.context() as patch:
        for module in (statistics, decide_module):
            patch.setattr(module, "called", lambda found, *_: np.zeros(np.shape(found.difference), dtype=np.int8))
        patch.setattr(statistics, "far_outside", lambda base, *_: np.zeros(base.shape[:-1], dtype=np.int8))
        return decide(*given, **more)


def sign_flipped(metric: MetricSpec, *given: Any, **more: Any) -> Judgement:
    return decide(replace(metric, better={"higher": "lower", "lower": "higher"}[metric.better]), *given, **more)


def stage_2_reuses_stage_1(
    metric: MetricSpec, base: Any, first: Starts, second: Starts | None = None, **more: Any
) -> Judgement:
    bare = first.values if isinstance(first, Starts) else first
    return decide(metric, base, bare, None if second is None else bare, **more)


def retry_until_green(metric: MetricSpec, base: Any, first: Any, second: Any = None, **more: Any) -> Judgement:
    """Seven tries with a fifth of the starts each; the first that does not block counts."""
    if second is None:
        return decide(metric, base, first, **more)
    tries = [decide(metric, base, first, [value], **more) for value in Starts.of(second).values]
    return next((each for each in tries if not each.blocks), tries[-1])


def zeros_left_out(metric: MetricSpec, base: Any, *given: Any, **more: Any) -> Judgement:
    kept = [value for value in Starts.of(base).values if value > 0]
    return decide(metric, kept or None, *given, **more)


def environment_ignored(*given: Any, incomparable: Sequence[str] = (), **more: Any) -> Judgement:
    return decide(*given, **more)


def samples_as_starts(metric: MetricSpec, base: Any, *given: Any, **more: Any) -> Judgement:
    return decide(metric, base, *(each.values if isinstance(each, Starts) else each for each in given), **more)


def green_when_empty(metric: MetricSpec, base: Any, first: Any, *given: Any, **more: Any) -> Judgement:
    found = decide(metric, base, first, *given, **more)
    return found if len(Starts.of(first)) else replace(found, verdict="no change")


MUTANTS: dict[str, Decide] = {
    "comparator disabled": comparator_disabled,
    "sign flipped": sign_flipped,
    "stage 2 reuses stage 1": stage_2_reuses_stage_1,
    "retry until green": retry_until_green,
    "baseline of zeros": zeros_left_out,
    "another machine's baseline": environment_ignored,
    "samples counted as starts": samples_as_starts,
    "measured nothing and passed": green_when_empty,
}


@pytest.mark.parametrize("probe", PROBES)
def test_the_gate_passes_every_probe(probe: str):
    assert PROBES[probe](decide)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_caught(mutant: str):
    caught = [name for name, probe in PROBES.items() if not probe(MUTANTS[mutant])]
    assert caught, f"no probe notices: {mutant}"


def test_a_wrong_policy_shows_in_the_probes():
    """A gate that calls everything equal, because its margin is wide, lets the slowdown through."""
    wide = replace(POLICY, minimum_effect=0.5, equivalence=0.5)
    assert not PROBES["a slowdown blocks"](lambda *given, **more: decide(*given, **more, policy=wide))
