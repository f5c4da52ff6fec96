"""Where SGLang 0.5.23 is known to answer wrongly. Each test passes over the known defect alone: that must be there, all
that is wrong must be explained by it, and the rest of the case is judged as any other. A release that repairs one makes
its test fail, and the test is taken away."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection

import pytest
from known_defects import beside, expected_by_run
from processed_scores import Policy, ProcessedChecker, counts_late
from sampled_draws import judge_draws, judge_outputs
from speculative_pair import Pair, alone, draft_tokens
from trial import counted_by_pass, counted_late, probe, unmerged

from fixtures.serving.server import Server
from fixtures.speculation.answers import Ask
from fixtures.speculation.finishing import judge_finish
from fixtures.speculation.reference import Reference
from fixtures.speculation.replay import Symptom
from fixtures.speculation.serve import ask_all

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.correctness,
    pytest.mark.timeout(3600),
]

PENALTIES = (
    "SGLang 0.5.23 counts one token a verify pass for frequency, presence and repetition penalties under EAGLE "
    "(eagle_prepare_for_decode passes on output_ids[-1] alone): the accepted drafts are never penalised. "
    "Minimal request: any prompt with frequency_penalty 1 whose answer repeats a token inside an accepted run"
)
MINIMUM = (
    "SGLang 0.5.23 counts verify passes, not tokens, for min_new_tokens under EAGLE: a stop token is held back for "
    "that many passes. Minimal request: min_new_tokens 8, stop_token_ids of tokens that come after the eighth"
)
ORDER = (
    "SGLang 0.5.23 looks for stop strings before stop tokens in the whole accepted run (update_finish_state): an "
    "answer that meets a stop token and then, in the same run, a stop string goes on to the string. "
    "Minimal request: stop_token_ids of a run's first token, stop with the text of its third"
)

MIN_P = (
    "SGLang 0.5.23 applies no min_p under EAGLE above temperature 0 (eagle_sample cuts by top_k and top_p alone), and "
    "does not refuse it. Minimal request: temperature 1, min_p 0.3, whose answer holds a token less likely than that"
)

LATE = (
    "SGLang 0.5.23 counts tokens one late for penalties in plain decoding with its overlapped schedule "
    "(cumulate_penalty_output_tokens takes output_ids[-1] before the last token is there; at first the prompt's last). "
    "Minimal request: any prompt with frequency_penalty 2 whose answer repeats a token"
)

LAST_ID = (
    "SGLang 0.5.23 names the last id of the vocabulary 0 in input_token_logprobs (logprob_result_processor.py: "
    "x < vocab_size - 1); the logprob beside it is right. Minimal request: input_ids that end in vocab_size - 1, "
    "return_logprob, logprob_start_len 0"
)


def known(reason: str, complaints: list[str]) -> None:
    """The test ends here: expected to fail by the known defect, or failed by anything else."""
    assert not complaints, "\n".join(complaints)
    pytest.xfail(reason)


def test_a_replay_names_the_last_id_of_the_vocabulary(
    checker: ProcessedChecker, prompts: list[tuple[int, ...]]
) -> None:
    port = int(checker.reference.url.rpartition(":")[2])
    last = checker.vocabulary.size - 1
    ids = [*prompts[0], last]
    body = {
        "input_ids": ids, "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [last],
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())["meta_info"]
    finally:
        connection.close()
    named = [entry[1] for entry in answer["input_token_logprobs"]]
    assert named != ids, "the defect is gone: take the test out"
    own, beside = answer["input_token_logprobs"][-1][0], answer["input_token_ids_logprobs"][-1][0][0]
    assert own == pytest.approx(beside, abs=1e-6), "the logprob itself is another's"
    by_the_defect = [0 if token == last else token for token in ids]
    known(LAST_ID, [] if named == by_the_defect else [f"another defect: {ids[-5:]} are named {named[-5:]}"])


def test_penalties_count_every_token(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    cap = {"max_new_tokens": 32, "ignore_eos": True, "frequency_penalty": 1.0, "presence_penalty": 1.0}
    asks = [Ask(f"penalised-{number}", prompt, cap, stream=True) for number, prompt in enumerate(prompts[:8])]
    known(PENALTIES, but_for_counting(server.url, asks, checker, counted_by_pass))


def test_min_new_tokens_counts_tokens(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    asks = []
    for number, found in enumerate(probe(server.url, prompts[:8], draft_tokens(pair.speculative))):
        stops = list(found.tokens[10:14])
        sampling = {"max_new_tokens": 40, "min_new_tokens": 8, "stop_token_ids": stops}
        asks.append(Ask(f"at-least-8-{number}", found.prompt, sampling, stream=True))
    known(MINIMUM, but_for_counting(server.url, asks, checker, counted_by_pass))


def test_plain_decoding_counts_the_last_token(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    checker = replace(checker, reference=Reference(serve(alone(pair.reference)).url))
    if not counts_late(checker.reference):
        pytest.skip("the plain server's schedule is not overlapped")
    cap = {"max_new_tokens": 40, "ignore_eos": True, "frequency_penalty": 2.0}
    asks = [Ask(f"penalised-{number}", prompt, cap) for number, prompt in enumerate(prompts[:8])]
    known(LATE, but_for_counting(checker.reference.url, asks, checker, counted_late))


def but_for_counting(url: str, asks: list[Ask], checker: ProcessedChecker, policy: Policy) -> list[str]:
    """What is wrong with these answers but for the tokens that `policy` counts."""
    together = 1 if policy is counted_late else 8
    given = zip(asks, ask_all(url, asks, together=together), strict=True)
    answers = [unmerged(url, ask, answer) for ask, answer in given]
    relaxed = checker.check(asks, answers, policy).findings
    return beside(checker.check(asks, answers).findings, Symptom.REGRET, relaxed)


def test_the_stop_that_comes_first_ends_the_answer(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    decode, eos = checker.vocabulary.decode, checker.vocabulary.eos
    asks = []
    for number, found in enumerate(probe(server.url, prompts[:16], draft_tokens(pair.speculative))):
        for start in found.starts:
            string = decode(found.tokens[start + 1 : start + 3])
            if found.first_here(start) and string.strip() and string not in decode(found.tokens[: start + 2]):
                sampling = {"max_new_tokens": 40, "stop_token_ids": [found.tokens[start]], "stop": [string]}
                asks.append(Ask(f"token-then-string-{number}", found.prompt, sampling, stream=True))
                break
    assert asks, "no accepted run to stop in"
    given = zip(asks, ask_all(server.url, asks, together=8), strict=True)
    answers = [unmerged(server.url, ask, answer) for ask, answer in given]
    strict = checker.check(asks, answers).findings
    by_run = [
        each for ask, answer in zip(asks, answers, strict=True)
        for each in judge_finish(ask, answer, eos, decode, partial(expected_by_run, ask=ask, eos=eos, decode=decode))
    ]
    known(ORDER, beside(strict, Symptom.FINISH, by_run))


def test_min_p_cuts_what_is_sampled(
    pair: Pair, checker: ProcessedChecker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    sampling = {"temperature": 1.0, "min_p": 0.3}
    server, depth = serve(pair.speculative), draft_tokens(pair.speculative)
    found, answers = judge_draws(server.url, prompts[0], sampling, checker, depth=depth, samples=400)
    without = judge_outputs(prompts[0], answers, sampling, checker, depth, verified={"temperature": 1.0})
    known(MIN_P, beside(found, Symptom.DISTRIBUTION, without))


def test_min_p_is_no_defect_of_the_plain_server(checker: ProcessedChecker, prompts: list[tuple[int, ...]]) -> None:
    """The same request, judged the same way."""
    sampling = {"temperature": 1.0, "min_p": 0.3}
    found, _ = judge_draws(checker.reference.url, prompts[0], sampling, checker, depth=4, samples=400)
    assert not found, "\n".join(map(str, found))
