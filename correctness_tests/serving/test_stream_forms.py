"""Both forms of SGLang's stream, from a server of each side by side: the same answers, and what reading them costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from fixtures.deployments import load_box, resolve_model
from fixtures.errors import DeploymentError
from fixtures.serving.client import WorkloadResult, measure_workload
from fixtures.serving.server import Server, start_server
from fixtures.serving.workloads import load_workload
from fixtures.serving.workloads.prompts import PROMPTS, read_prompts
from fixtures.speculation.answers import Answer, Ask
from fixtures.speculation.serve import ask_all
from fixtures.speculation.vocabulary import Vocabulary

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(1200), pytest.mark.xdist_group("streams")]

DEPLOYMENT = replace(load_box("cpu").deployment("eagle3"), deadline_s=600)
NEW_TOKENS = {"new tokens": True, "all so far": False}
"""`incremental_streaming`, by what an event then holds."""
BLOCKS = 5


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


def test_the_client_pays_less_for_new_tokens_alone(servers: dict[str, Server]) -> None:
    """Blocks of one workload in turn, so that both forms see the same machine; their answers are the same too."""
    workload = replace(load_workload("single_stream", "cpu"), requests=4)
    costs: dict[str, list[float]] = {form: [] for form in servers}
    answers: dict[str, list[tuple[int, ...]]] = {}
    for block in range(BLOCKS):
        for form in list(servers)[:: 1 if block % 2 else -1]:
            result = measure_workload(servers[form].url, workload)
            costs[form].append(cost_per_token_ms(result))
            answers[form] = [request.output_ids for request in result.requests]
    ratios = [new / all_ for new, all_ in zip(*costs.values(), strict=True)]
    shown = {form: f"{median(each):.3f} ms" for form, each in costs.items()}
    print(f"client CPU per token: {shown}, ratio {median(ratios):.2f} of {[round(each, 2) for each in ratios]}")
    assert answers["new tokens"] == answers["all so far"]
    assert median(ratios) < 1


def cost_per_token_ms(result: WorkloadResult) -> float:
    return result.client.cpu_share * result.wall_s * 1e3 / result.completion_tokens
