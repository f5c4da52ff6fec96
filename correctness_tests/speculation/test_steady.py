"""Do the checks stay silent on a right server, and does acceptance last?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acceptance import acceptance, judge_acceptance, judge_cache_hit, judge_decay, judge_history
from long_requests import again, lengths, long_run, varied
from processed_scores import ProcessedChecker
from request_matrix import BUILDERS, Probe
from speculative_pair import Pair, draft_tokens
from trial import as_counted_by, build, probe, run_group

from fixtures.serving.server import Server
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

REPETITIONS = 30
LONG_RUN = {"cpu": 300}
"""Requests of the long run; elsewhere 3000."""


def test_no_alarm_on_a_right_server(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    """Thirty times, on other prompts each time, and each kind of request in turn."""
    server = serve(pair.speculative)
    kinds = [name for name in BUILDERS if name not in ("plain_alone", "plain_long", "batches", "penalties")]
    alarms = []
    positions = regrets = 0
    for turn in range(REPETITIONS):
        mine = [varied(prompts[(turn * 5 + index) % len(prompts)], turn) for index in range(6)]
        probes = probe(server.url, mine, draft_tokens(pair.speculative))
        for group in build(kinds[turn % len(kinds)], probes, checker):
            trial = run_group(server.url, group, checker, as_counted_by(server.info))
            positions, regrets = positions + trial.checked.positions, regrets + trial.checked.regrets
            alarms += [f"repetition {turn}: {finding}" for finding in trial.checked.findings]
            if trial.again:
                alarms += map(str, judge_cache_hit(group.name, trial.answers, trial.again))
            alarms += map(str, judge_history(group.name, group.asks, trial.answers, probes))
    print(f"\n{REPETITIONS} repetitions: {positions} positions, {regrets} regrets, {len(alarms)} alarms")
    assert not alarms, "\n".join(alarms)


def test_acceptance_does_not_decay_over_a_long_run(
    pair: Pair, serve: Callable[..., Server], prompts: list[tuple[int, ...]],
    probes_of: Callable[[Server], list[Probe]],
) -> None:
    """Neither within the run, nor against what the server reached when it was first asked, however long ago."""
    server = serve(pair.speculative)
    early = probes_of(server)
    answers = ask_all(server.url, long_run(prompts, LONG_RUN.get(pair.speculative.box, 3000)), together=12)
    print(f"\n{len(answers)} requests: {acceptance(answers)}")
    late = again(early)
    found = [
        *judge_acceptance("long run", answers, floor=1.4),
        *judge_decay("long run", lengths(answers)),
        *judge_history("after the long run", late, ask_all(server.url, late, together=8), early),
    ]
    assert not found, "\n".join(map(str, found))
