"""The requests that have broken speculative decoding before, each judged by the replay rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.serving.running import Server
from fixtures.speculation.acceptance import acceptance, judge_acceptance, judge_cache_hit
from fixtures.speculation.check import Checker
from fixtures.speculation.matrix import BUILDERS
from fixtures.speculation.served import Pair, draft_tokens
from fixtures.speculation.trial import Trial, build, probe, run_group

pytestmark = [
    pytest.mark.live, pytest.mark.correctness, pytest.mark.xdist_group("speculation"), pytest.mark.timeout(3600)
]

SMALLER = ("lengths", "stop_tokens", "logprobs", "batches", "repeated")
"""What a deployment with tensor parallelism, slower on a CPU, is asked."""


def run(
    name: str, deployment: str, pair: Pair, serve: Callable[..., Server], checker: Checker,
    prompts: list[tuple[int, ...]],
) -> list[Trial]:
    server = serve(pair.speculative if deployment != "baseline" else pair.reference)
    probes = probe(server.url, prompts[:16], draft_tokens(pair.speculative))
    trials = [run_group(server.url, group, checker) for group in build(name, probes, checker)]
    for trial in trials:
        asked = f"{trial.group.name}: {len(trial.answers)} requests, worst regret {trial.checked.worst:.4f}"
        print(f"\n{asked}; {acceptance(trial.answers)}" if trial.answers[0].verify_passes else f"\n{asked}")
    return trials


def verdict(trials: list[Trial]) -> None:
    reports = [trial.checked.report for trial in trials if trial.checked.findings]
    assert not reports, "\n".join(reports)
    refused = {name: words for trial in trials for name, words in trial.refusals.items()}
    asked = sum(len(trial.answers) for trial in trials)
    print(*(f"refused: {name}: {words}" for name, words in refused.items()), sep="\n")
    if refused and len(refused) == asked:
        pytest.skip(f"the server serves none of these: {next(iter(refused.values()))}")


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("deployment", ["baseline", "eagle3"])
def test_matrix(
    name: str, deployment: str, pair: Pair, serve: Callable[..., Server], checker: Checker,
    prompts: list[tuple[int, ...]],
) -> None:
    trials = run(name, deployment, pair, serve, checker, prompts)
    verdict(trials)
    if deployment != "baseline" and name == "batches":
        found = [each for t in trials for each in judge_acceptance(t.group.name, t.answers, floor=1.5)]
        assert not found, "\n".join(map(str, found))
    if deployment != "baseline" and name == "repeated":
        found = [each for t in trials for each in judge_cache_hit(t.group.name, t.answers, t.again)]
        assert not found, "\n".join(map(str, found))
