"""Does each check fail when it must? Every planted fault on a real server, beside the rules that others use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import alternatives
import pytest
from acceptance import acceptance, judge_cache_hit, judge_decay, judge_history, judge_paired
from long_requests import again, lengths, long_answers, long_prompts, long_run
from planted import (
    DECAYS,
    PLANTED,
    PLANTED_CONTEXTS,
    PLANTED_SAMPLING,
    PLANTED_TENSOR_PARALLEL,
    PLANTED_TIGHT,
    Planted,
    switch_to,
    with_fault,
    with_switched,
)
from planted_table import ROW, Row
from processed_scores import ProcessedChecker
from request_matrix import Group, Probe
from sampled_draws import judge_draws
from situations import run_full_cache, run_idle, run_retracted
from speculative_pair import Pair, draft_tokens
from speculative_pair import pair as pair_of
from trial import Trial, as_counted_by, build, flush_cache, probe, run_group

from fixtures.serving.pool import ServerPool
from fixtures.serving.server import Server
from fixtures.serving.workloads.workload import PROMPTS as PROMPTS_DIR
from fixtures.serving.workloads.workload import read_prompts
from fixtures.session.run import Run
from fixtures.speculation.answers import Answer
from fixtures.speculation.replay import Finding, Symptom
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

PROMPTS = 32
CROWD = 40
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
DRAWS = 2000
IDLE_S = 5.0
"""The right server stands still for a minute (`test_situations`)."""

Before = dict[str, tuple[Answer, ...]]
"""By group: the answers of the same server without the fault."""


Note = Callable[[Row], None]


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """Hands what a fault came to to the table at the end of the run."""
    return lambda row: record_property(ROW, asdict(row))


@pytest.fixture(scope="module")
def healthy() -> dict[str, tuple[list[Probe], Before]]:
    """By server: what it answers without a fault."""
    return {}


def examine(
    planted: Planted, server: Server, checker: ProcessedChecker, probes: list[Probe], before: Before, note: Note
) -> tuple[list[Trial], list[Finding]]:
    """Run the fault's requests; all findings, and a row of the table."""
    trials = asked(planted, server, checker, probes)
    found = [finding for trial in trials for finding in trial.checked.findings]
    if planted.group in before:
        found += [each for t in trials for each in judge_paired(t.group.name, before[t.group.name], t.answers)]
    found += [each for t in trials for each in judge_history(t.group.name, t.group.asks, t.answers, probes)]
    found += [each for t in trials if t.again for each in judge_cache_hit(t.group.name, t.answers, t.again)]
    # Those of one situation take long, or depend on when they are asked.
    alone = planted in (*PLANTED_CONTEXTS, *PLANTED_TIGHT) or planted.group == "batches"
    pairs = [] if alone else [(trial.answers, plain_answers(trial.group, checker)) for trial in trials]
    answers = [answer for trial in trials for answer in trial.answers]
    mine, others = [a for one, _ in pairs for a in one], [a for _, theirs in pairs for a in theirs]
    judged = [trial.checked for trial in trials]
    note(
        Row(
            planted.fault, planted.group, tuple(dict.fromkeys(str(each.symptom) for each in found)),
            max(each.worst for each in judged), sum(each.regrets for each in judged), acceptance(answers).length,
            alternatives.exact_share(mine, others) if pairs else None,
            alternatives.most_exact(mine, others) if pairs else None,
            alternatives.close(mine, others) if pairs and all(answer.top for answer in answers) else None,
        )
    )
    return trials, found


def asked(planted: Planted, server: Server, checker: ProcessedChecker, probes: list[Probe]) -> list[Trial]:
    """The requests that show the fault, as the tests of a right server ask them."""
    end = planted.end or int(server.info["max_req_input_len"])
    match planted.group:
        case "long_answers":
            return [run_group(server.url, long_answers(probes, end), checker)]
        case "long_prompts":
            texts = [checker.vocabulary.encode(text.text) for text in read_prompts(PROMPTS_DIR / "long_openings.jsonl")]
            return [run_group(server.url, long_prompts(texts, end), checker)]
        case "idle":
            return [run_idle(server, probes, checker, IDLE_S)[0]]
        case "retracted":
            return [run_retracted(server.url, probes, checker)]
        case "full_cache":
            return [run_full_cache(server.url, [probe.prompt for probe in probes][:CROWD], checker)]
        case kind:
            counted = as_counted_by(server.info)
            groups = [only(group, planted.only) for group in build(kind, probes, checker)]
            return [run_group(server.url, group, checker, counted) for group in groups if group.asks]


def only(group: Group, name: str) -> Group:
    """The requests of a group that have `name` in theirs."""
    return replace(group, asks=tuple(ask for ask in group.asks if name in ask.name))


_PLAIN: dict[str, list[Answer]] = {}


def plain_answers(group: Group, checker: ProcessedChecker) -> list[Answer]:
    """The plain server's own answers to the same requests, for the rules that compare texts; asked once."""
    key = repr(group.asks)
    if key not in _PLAIN:
        _PLAIN[key] = ask_all(checker.reference.url, group.asks, together=group.together)
    return _PLAIN[key]


def probed(
    server: Server, name: str, checker: ProcessedChecker, pair: Pair, prompts: list[tuple[int, ...]],
    healthy: dict[str, tuple[list[Probe], Before]],
) -> tuple[list[Probe], Before]:
    """What the server answers without a fault."""
    if name not in healthy:
        probes = probe(server.url, prompts[:PROMPTS], draft_tokens(pair.speculative))
        kinds = ("plain", "plain_long") if "tp2" not in name else ("plain",)
        groups = [group for kind in kinds for group in build(kind, probes, checker)]
        trials = [run_group(server.url, group, checker) for group in groups]
        assert not trials[0].checked.findings, trials[0].checked.report
        healthy[name] = probes, {trial.group.name: trial.answers for trial in trials}
    return healthy[name]


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_planted_fault_is_caught(
    planted: Planted, pair: Pair, checker: ProcessedChecker, server_pool: ServerPool, serve: Callable[..., Server],
    prompts: list[tuple[int, ...]], note: Note, healthy: dict[str, tuple[list[Probe], Before]],
) -> None:
    if pair.speculative.box != "cpu":
        pytest.skip("the planted faults of speculation sit in the CPU platform")
    switch = server_pool.directory / "fault_switch"
    if planted.at_start:
        # What the drafts should reach is known from the same server without the fault.
        # It gives its place up for the faulty one: judge and two servers of EAGLE-3 are one too many.
        with server_pool.use(pair.speculative) as right:
            probes, before = probed(right, "eagle3", checker, pair, prompts, healthy)
        caught(planted, serve(with_fault(pair.speculative, planted)), checker, probes, before, note)
        return
    server = serve(with_switched(pair.speculative, switch))
    switched(planted, server, switch, checker, pair, prompts, note, healthy)


@pytest.mark.parametrize("planted", PLANTED_CONTEXTS, ids=str)
def test_a_fault_of_one_situation_is_caught(
    planted: Planted, pair: Pair, checker: ProcessedChecker, server_pool: ServerPool, serve: Callable[..., Server],
    prompts: list[tuple[int, ...]], note: Note, healthy: dict[str, tuple[list[Probe], Before]],
) -> None:
    if pair.speculative.box != "cpu":
        pytest.skip("the planted faults of speculation sit in the CPU platform")
    switch = server_pool.directory / "fault_switch"
    server = serve(with_switched(pair.speculative, switch))
    switched(planted, server, switch, checker, pair, prompts, note, healthy)


@pytest.mark.parametrize("planted", PLANTED_TIGHT, ids=str)
def test_a_fault_of_ends_and_a_full_cache_is_caught(
    planted: Planted, tight: Any, pair: Pair, prompts: list[tuple[int, ...]], note: Note,
    healthy: dict[str, tuple[list[Probe], Before]],
) -> None:
    if pair.speculative.box != "cpu":
        pytest.skip("the planted faults of speculation sit in the CPU platform")
    if tight.server.name not in healthy:
        healthy[tight.server.name] = probe(tight.server.url, prompts, draft_tokens(pair.speculative)), {}
    switch_to(tight.switch, planted.fault)
    try:
        caught(planted, tight.server, tight.checker, *healthy[tight.server.name], note)
    finally:
        switch_to(tight.switch, "")
        flush_cache(tight.server.url)


@pytest.mark.parametrize("planted", PLANTED_TENSOR_PARALLEL, ids=str)
def test_a_fault_of_an_all_reduce_is_caught(
    planted: Planted, run: Run, pair: Pair, checker: ProcessedChecker, server_pool: ServerPool,
    serve: Callable[..., Server], prompts: list[tuple[int, ...]], note: Note,
    healthy: dict[str, tuple[list[Probe], Before]],
) -> None:
    if "tp2_eagle3" not in run.box.deployments:
        pytest.skip(f"box {run.box.name} has no deployment tp2_eagle3")
    switch = server_pool.directory / "fault_switch_tp2"
    parallel = pair_of(run.box, "tp2_eagle3")
    server = serve(with_switched(parallel.speculative, switch))
    switched(planted, server, switch, checker, pair, prompts, note, healthy)


def switched(
    planted: Planted, server: Server, switch: Path, checker: ProcessedChecker, pair: Pair,
    prompts: list[tuple[int, ...]], note: Note, healthy: dict[str, tuple[list[Probe], Before]],
) -> None:
    switch_to(switch, "")
    flush_cache(server.url)
    probes, before = probed(server, server.name, checker, pair, prompts, healthy)
    flush_cache(server.url)  # nothing that was computed without the fault, and nothing of it afterwards
    switch_to(switch, planted.fault)
    try:
        caught(planted, server, checker, probes, before, note)
    finally:
        switch_to(switch, "")
        flush_cache(server.url)


def caught(
    planted: Planted, server: Server, checker: ProcessedChecker, probes: list[Probe], before: Before, note: Note
) -> None:
    _, found = examine(planted, server, checker, probes, before, note)
    matching = [each for each in found if each.symptom in planted.symptoms]
    assert planted.fault.partition(":")[0] in {name.partition(":")[0] for name in server.faults}, "not planted"
    print(*(matching or found)[:3], sep="\n")
    assert any(planted.says in str(each) for each in matching), f"{planted.fault} passed: {found or 'no finding'}"


@pytest.mark.parametrize("planted", PLANTED_SAMPLING, ids=str)
def test_a_fault_of_sampled_verify_is_caught(
    planted: Planted, pair: Pair, checker: ProcessedChecker, server_pool: ServerPool, serve: Callable[..., Server],
    prompts: list[tuple[int, ...]], note: Note,
) -> None:
    """The same draws as `test_sampled`, fewer of them; without the fault they agree."""
    if pair.speculative.box != "cpu":
        pytest.skip("the planted faults of speculation sit in the CPU platform")
    switch = server_pool.directory / "fault_switch"
    server = serve(with_switched(pair.speculative, switch))
    depth = draft_tokens(pair.speculative)
    switch_to(switch, planted.fault)
    try:
        found, answers = judge_draws(server.url, prompts[0], SAMPLING, checker, depth=depth, samples=DRAWS)
    finally:
        switch_to(switch, "")
    symptoms = tuple(dict.fromkeys(str(each.symptom) for each in found))
    note(Row(planted.fault, planted.group, symptoms, None, 0, acceptance(answers).length, None, None, None))
    assert planted.fault in {name.partition(":")[0] for name in server.faults}, "not planted"
    print(*found[:3], sep="\n")
    assert {each.symptom for each in found} == set(planted.symptoms), f"{planted.fault} passed: {found or 'no finding'}"


@pytest.mark.parametrize("fault", list(DECAYS))
def test_decaying_drafts_are_caught(
    fault: str, pair: Pair, checker: ProcessedChecker, server_pool: ServerPool, serve: Callable[..., Server],
    prompts: list[tuple[int, ...]], note: Note,
) -> None:
    """Right outputs from drafts that get worse, bit by bit or at once, in the middle of a long run."""
    if pair.speculative.box != "cpu":
        pytest.skip("the planted faults of speculation sit in the CPU platform")
    switch = server_pool.directory / "fault_switch"
    server = serve(with_switched(pair.speculative, switch))
    early = probe(server.url, prompts[:16], draft_tokens(pair.speculative))
    switch_to(switch, fault)
    try:
        answers = ask_all(server.url, long_run(prompts, DECAYS[fault]), together=12)
        late = ask_all(server.url, again(early), together=8)
    finally:
        switch_to(switch, "")
        flush_cache(server.url)
    within = judge_decay("long run", lengths(answers))
    after = judge_history("after the long run", again(early), late, early)
    symptoms = tuple(str(each.symptom) for each in (*within, *after))
    note(Row(fault, "long run", symptoms, None, 0, acceptance(answers).length, None, None, None))
    print(*within, *after, sep="\n")
    assert [each.symptom for each in within] == [Symptom.DECAY]
    assert [each.symptom for each in after] == [Symptom.ACCEPT_LENGTH]
