"""Both forms of SGLang's stream, from a server of each side by side: the same answers, and what reading them costs."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.deployments import load_box, resolve_model
from fixtures.errors import DeploymentError
from fixtures.serving.client_stream import EventSplitter, TokenLedger
from fixtures.serving.server import Server, start_server
from fixtures.serving.workloads.workload import PROMPTS, read_prompts
from fixtures.speculation.answers import Answer, Ask
from fixtures.speculation.serve import ask_all
from fixtures.speculation.vocabulary import Vocabulary

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.xdist_group("streams")]

DEPLOYMENT = replace(load_box("cpu").deployment("eagle3"), deadline_s=600)
NEW_TOKENS = {"new tokens": True, "all so far": False}
"""`incremental_streaming`, by what an event then holds."""
LONG = 512
ROUNDS = 20


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    try:
        resolve_model(DEPLOYMENT.model, os.environ)
    except DeploymentError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        started = {}
        for number, (form, on) in enumerate(NEW_TOKENS.items()):
            deployment = replace(DEPLOYMENT, options={**DEPLOYMENT.options, "incremental_streaming": on})
            folder: Path = tmp_path_factory.mktemp(f"stream{number}")
            started[form] = stack.enter_context(start_server(deployment, directory=folder / "start"))
        yield started


def asked(server: Server, *, stream: bool) -> list[Answer]:
    """Greedy answers with logprobs, one at a time: which requests share a batch moves logprobs."""
    vocabulary = Vocabulary(resolve_model(DEPLOYMENT.model, os.environ), trust_remote_code=False)
    prompts = [vocabulary.encode(prompt.text) for prompt in read_prompts(PROMPTS / "code_openings.jsonl")[:6]]
    sampling = {"max_new_tokens": 60}
    return ask_all(
        server.url,
        [Ask(f"prompt-{n}", prompt, sampling, top_logprobs=2, stream=stream) for n, prompt in enumerate(prompts)],
        together=1,
    )


@pytest.mark.parametrize("form", NEW_TOKENS)
def test_a_stream_says_what_the_whole_answer_says(servers: dict[str, Server], form: str) -> None:
    assert servers[form].info["incremental_streaming_output"] is NEW_TOKENS[form]
    whole = asked(servers[form], stream=False)
    streamed = asked(servers[form], stream=True)
    for plain, pieced in zip(whole, streamed, strict=True):
        assert len(pieced.runs) > 5, "an answer in one piece shows nothing"
        assert sum(pieced.runs) == len(pieced.tokens) == pieced.completion_tokens == len(pieced.logprobs)
        assert (pieced.tokens, pieced.text, pieced.finish) == (plain.tokens, plain.text, plain.finish)
        assert pieced.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
        assert [set(row) for row in pieced.top] == [set(row) for row in plain.top]


def test_reading_new_tokens_alone_costs_less(servers: dict[str, Server]) -> None:
    """One long answer from each server, the same in both; read as the client does, in turn, the least time of each."""
    streams = {form: stream_of(server) for form, server in servers.items()}
    costs: dict[str, list[float]] = {form: [] for form in streams}
    answers: dict[str, list[int]] = {}
    for _ in range(ROUNDS):
        for form, stream in streams.items():
            ledger, splitter = TokenLedger(form), EventSplitter()
            began = time.thread_time()
            for line in stream:
                for payload in splitter.feed(line):
                    ledger.accept(payload, 0.0)
            costs[form].append((time.thread_time() - began) / len(ledger.ids) * 1e6)
            ledger.check(LONG, ignore_eos=True)
            answers[form] = ledger.ids
    least = {form: min(each) for form, each in costs.items()}
    ratio = least["new tokens"] / least["all so far"]
    print(f"CPU of reading a token, us: { {form: round(each, 2) for form, each in least.items()} }, ratio {ratio:.2f}")
    assert answers["new tokens"] == answers["all so far"]
    assert ratio < 0.8


def stream_of(server: Server) -> list[bytes]:
    """The lines of one greedy answer."""
    sampling = {"temperature": 0, "max_new_tokens": LONG, "ignore_eos": True}
    body = json.dumps({"text": "def main(", "sampling_params": sampling, "stream": True}).encode()
    asked = urllib.request.Request(f"{server.url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return list(answer)
