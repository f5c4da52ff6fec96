"""The requests that have broken speculative decoding before, each judged by the replay rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from acceptance import acceptance, judge_acceptance, judge_cache_hit, judge_history
from processed_scores import ProcessedChecker
from request_matrix import BUILDERS, Probe
from speculative_pair import alone, patient, speculative_names
from speculative_pair import pair as pair_of
from trial import Trial, as_counted_by, build, run_group

from fixtures.plugin import RUN
from fixtures.serving.server import Server
from fixtures.session.run import Run
from fixtures.speculation.reference import Reference

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

SMALLER = ("plain", "lengths", "stop_tokens", "logprobs", "batches", "repeated")
"""What every further deployment with EAGLE-3 is asked: another tensor parallelism, another all-reduce."""

LEAST_ACCEPT_LENGTH = 1.4
"""At each batch size, on a server of which nothing is known yet. What it reached before is judged by its own history,
the exact figure against its baseline by the perf tests (`accept_length`)."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every deployment with EAGLE-3 and the plain one that judges them."""
    box = metafunc.config.stash[RUN].box
    cases = []
    if "eagle3" in box.deployments:
        plain = pair_of(box, "eagle3").reference.name
        cases += [(name, kind) for name in (plain, "eagle3") for kind in BUILDERS]
        others = [name for name in speculative_names(box) if name not in ("eagle3", "deterministic_eagle3")]
        cases += [(name, kind) for name in others for kind in SMALLER]
    metafunc.parametrize(("deployment", "kind"), cases, ids=[f"{name}-{kind}" for name, kind in cases])


def test_matrix(
    deployment: str, kind: str, run: Run, serve: Callable[..., Server], checker: ProcessedChecker,
    probes_of: Callable[[Server], list[Probe]],
) -> None:
    asked = run.box.deployment(deployment)
    speculative = asked.speculative
    if kind == "penalties" and not speculative:
        server = serve(alone(asked))
        checker = replace(checker, reference=Reference(server.url))
    else:
        server = serve(patient(asked))
    probes = probes_of(server)
    counted = as_counted_by(server.info)
    trials = [run_group(server.url, group, checker, counted) for group in build(kind, probes, checker)]
    for trial in trials:
        line = f"{trial.group.name}: {len(trial.answers)} requests, worst regret {trial.checked.worst:.4f}"
        print(f"{line}; {acceptance(trial.answers)}" if speculative else line)
    found = [finding for trial in trials for finding in trial.checked.findings]
    if speculative and kind in ("plain", "plain_long", "batches"):
        found += [
            each for t in trials for each in judge_acceptance(t.group.name, t.answers, LEAST_ACCEPT_LENGTH)
        ]
    if speculative:
        # However many run beside it, a prompt is drafted for as it was when the server was first asked.
        found += [each for t in trials for each in judge_history(t.group.name, t.group.asks, t.answers, probes)]
    if speculative and kind == "repeated":
        found += [each for t in trials for each in judge_cache_hit(t.group.name, t.answers, t.again)]
    assert not found, "\n".join([*map(str, found), *(trial.checked.report for trial in trials)])
    skip_if_refused(trials)


def skip_if_refused(trials: list[Trial]) -> None:
    """Tell what the server refused, in its own words; a kind of request of which it serves none is skipped."""
    refused = {name: words for trial in trials for name, words in trial.refusals.items()}
    for name, words in refused.items():
        print(f"refused: {name}: {words}")
    if refused and len(refused) == sum(len(trial.answers) for trial in trials):
        pytest.skip(f"the server serves none of these: {next(iter(refused.values()))}")
