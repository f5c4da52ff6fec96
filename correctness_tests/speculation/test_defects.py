"""Where SGLang 0.5.23 answers wrongly under EAGLE-3. Strict: a release that repairs one makes its test fail, and the
mark is taken away."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection

import pytest

from fixtures.serving.running import Server
from fixtures.speculation.answers import Ask
from fixtures.speculation.check import Checker
from fixtures.speculation.draws import judge_draws
from fixtures.speculation.serve import ask_all
from fixtures.speculation.served import Pair, draft_tokens
from fixtures.speculation.trial import build, probe, run_group

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

LAST_ID = (
    "SGLang 0.5.23 names the last id of the vocabulary 0 in input_token_logprobs (logprob_result_processor.py: "
    "x < vocab_size - 1); the logprob beside it is right. Minimal request: input_ids that end in vocab_size - 1, "
    "return_logprob, logprob_start_len 0"
)


@pytest.mark.xfail(reason=LAST_ID, strict=True, raises=AssertionError)
def test_a_replay_names_the_last_id_of_the_vocabulary(checker: Checker, prompts: list[tuple[int, ...]]) -> None:
    port = int(checker.reference.url.rpartition(":")[2])
    last = checker.vocabulary.size - 1
    body = {
        "input_ids": [*prompts[0], last], "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True, "logprob_start_len": 0,
    }
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        meta = json.loads(connection.getresponse().read())["meta_info"]
    finally:
        connection.close()
    assert meta["input_token_logprobs"][-1][1] == last


@pytest.mark.xfail(reason=PENALTIES, strict=True, raises=AssertionError)
def test_penalties_count_every_token(
    pair: Pair, checker: Checker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    cap = {"max_new_tokens": 32, "ignore_eos": True, "frequency_penalty": 1.0, "presence_penalty": 1.0}
    asks = [Ask(f"penalised-{number}", prompt, cap) for number, prompt in enumerate(prompts[:8])]
    checked = checker.check(asks, ask_all(server.url, asks, together=8))
    assert not checked.findings, checked.report


@pytest.mark.xfail(reason=MINIMUM, strict=True, raises=AssertionError)
def test_min_new_tokens_counts_tokens(
    pair: Pair, checker: Checker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    asks = []
    for number, found in enumerate(probe(server.url, prompts[:8], draft_tokens(pair.speculative))):
        stops = list(found.tokens[10:14])
        sampling = {"max_new_tokens": 40, "min_new_tokens": 8, "stop_token_ids": stops}
        asks.append(Ask(f"at-least-8-{number}", found.prompt, sampling))
    checked = checker.check(asks, ask_all(server.url, asks, together=8))
    assert not checked.findings, checked.report


@pytest.mark.xfail(reason=ORDER, strict=True, raises=AssertionError)
def test_the_stop_that_comes_first_ends_the_answer(
    pair: Pair, checker: Checker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    server = serve(pair.speculative)
    decode = checker.vocabulary.decode
    asks = []
    for number, found in enumerate(probe(server.url, prompts[:16], draft_tokens(pair.speculative))):
        for start in found.starts:
            string = decode(found.tokens[start + 1 : start + 3])
            if found.first_here(start) and string.strip() and string not in decode(found.tokens[: start + 2]):
                sampling = {"max_new_tokens": 40, "stop_token_ids": [found.tokens[start]], "stop": [string]}
                asks.append(Ask(f"token-then-string-{number}", found.prompt, sampling))
                break
    assert asks, "no accepted run to stop in"
    checked = checker.check(asks, ask_all(server.url, asks, together=8))
    assert not checked.findings, checked.report


@pytest.mark.xfail(reason=MIN_P, strict=True, raises=AssertionError)
def test_min_p_cuts_what_is_sampled(
    pair: Pair, checker: Checker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    sampling = {"temperature": 1.0, "min_p": 0.3}
    server, depth = serve(pair.speculative), draft_tokens(pair.speculative)
    found, _ = judge_draws(server.url, prompts[0], sampling, checker, depth=depth, samples=400)
    assert not found, "\n".join(map(str, found))


def test_min_p_is_no_defect_of_the_plain_server(checker: Checker, prompts: list[tuple[int, ...]]) -> None:
    """The same request, judged the same way."""
    sampling = {"temperature": 1.0, "min_p": 0.3}
    found, _ = judge_draws(checker.reference.url, prompts[0], sampling, checker, depth=4, samples=400)
    assert not found, "\n".join(map(str, found))


def test_penalties_and_minimum_as_sglang_counts_them(
    pair: Pair, checker: Checker, serve: Callable[..., Server], prompts: list[tuple[int, ...]]
) -> None:
    """The same requests are right once one token a pass is counted: the relaxation is all that is wrong."""
    server = serve(pair.speculative)
    probes = probe(server.url, prompts[:8], draft_tokens(pair.speculative))
    for name in ("penalties", "minimum"):
        for group in build(name, probes, checker):
            trial = run_group(server.url, group, checker)
            assert not trial.checked.findings, trial.checked.report
