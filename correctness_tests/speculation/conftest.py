"""What the speculation tests share: prompts, the vocabulary, the judge with its noise, one server at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import speculative_pair as served
from filelock import FileLock
from planted import with_switched
from processed_scores import ProcessedChecker
from request_matrix import Probe
from situations import ending_model
from trial import probe

from fixtures.deployments.command import resolve_model
from fixtures.errors import DeploymentError
from fixtures.records.store import write_atomically
from fixtures.serving.pool import ServerPool
from fixtures.serving.server import Server
from fixtures.serving.workloads.workload import PROMPTS, read_prompts
from fixtures.session.run import Run
from fixtures.speculation.reference import Reference
from fixtures.speculation.replay import Noise
from fixtures.speculation.vocabulary import Vocabulary

FOLDER = Path(__file__).parent
_FIRST = ("baseline", "eagle3")
CHUNK = 256
CACHE = 9000
"""Tokens: some 30 short requests at a time."""
LETS_ALL_IN = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
"""Tokens of an answer that SGLang keeps room for, at most, as it lets a request in; 4096 of its own."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one server next to each other and in one worker: each start takes most of a minute."""
    here = [(place, item) for place, item in enumerate(items) if item.path.is_relative_to(FOLDER)]
    in_order = sorted((item for _, item in here), key=lambda item: (_server_of(item), _turn_of(item)))
    for (place, _), item in zip(here, in_order, strict=True):
        item.add_marker(pytest.mark.xdist_group(GROUPS[_server_of(item)]))
        items[place] = item


GROUPS = (
    "speculation", "speculation", "speculation-faults", "speculation-others", "speculation-others",
    "speculation-others",
)
"""By server. Any worker uses the judge; one that has a server to itself may switch its faults and flush its cache."""


def _server_of(item: pytest.Item) -> int:
    """0: EAGLE-3 and its judge, 1 to 3: variants of EAGLE-3, 4 and 5: other deployments and their faults."""
    test, given = getattr(item, "originalname", ""), item.callspec.params if hasattr(item, "callspec") else {}
    match test:
        case "test_a_planted_fault_is_caught":
            return 1 if given["planted"].at_start else 2  # the first of them still needs the one without a fault
        case (
            "test_decaying_drafts_are_caught" | "test_a_fault_of_sampled_verify_is_caught"
            | "test_a_fault_of_one_situation_is_caught"
        ):
            return 2
        case (
            "test_prompts_beyond_the_prefill_chunk" | "test_an_end_of_sequence_inside_an_accepted_run"
            | "test_requests_that_a_full_cache_throws_out" | "test_a_fault_of_ends_and_a_full_cache_is_caught"
        ):
            return 3
        case "test_a_fault_of_an_all_reduce_is_caught":
            return 5
        case "test_matrix":
            return 0 if given.get("deployment") in _FIRST else 4
        case _:
            return 0


def _turn_of(item: pytest.Item) -> int:
    """EAGLE-3 stands still while the judge's own matrix runs: the test of an idle server comes right after it."""
    if item.name.startswith(f"test_matrix[{_FIRST[0]}-"):
        return 1
    if item.name == "test_the_first_passes_after_an_idle_minute":
        return 2
    return 0 if item.path.name == "test_defects.py" else 3


@pytest.fixture(scope="session")
def pair(run: Run) -> served.Pair:
    """The box's plain EAGLE-3 deployment and its judge."""
    try:
        found = served.pair(run.box, "eagle3")
        resolve_model(found.reference.model, os.environ)
    except DeploymentError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="session")
def vocabulary(pair: served.Pair) -> Vocabulary:
    path = resolve_model(pair.reference.model, os.environ)
    return Vocabulary(path, bool(pair.reference.options.get("trust_remote_code")))


@pytest.fixture(scope="session")
def prompts(vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """The workloads' short prompts as tokens."""
    return [vocabulary.encode(prompt.text) for prompt in read_prompts(PROMPTS / "code_openings.jsonl")]


@pytest.fixture(scope="session")
def noise_of(run: Run, server_pool: ServerPool, prompts: list[tuple[int, ...]]) -> Callable[[Server], Noise]:
    """The judge's noise: measured once a session by whichever worker is first, written beside the run's records."""
    known = server_pool.directory / "speculation_noise.json"

    def measure(server: Server) -> Noise:
        with FileLock(known.with_suffix(".lock")):
            if not known.exists():
                measured = Reference(server.url).noise(prompts[:24])
                text = json.dumps({"deployment": server.name, **asdict(measured)}, indent=1) + "\n"
                write_atomically(run.results() / known.name, text)
                write_atomically(known, text)
        told = json.loads(known.read_text())
        del told["deployment"]
        return Noise(**told)

    return measure


@pytest.fixture(scope="session")
def probes_of(
    prompts: list[tuple[int, ...]], pair: served.Pair
) -> Callable[[Server], list[Probe]]:
    """A server's own unconstrained answers to the first prompts, which most requests of the matrix are made of; asked
    once."""
    known: dict[str, list[Probe]] = {}

    def ask(server: Server) -> list[Probe]:
        if server.name not in known:
            known[server.name] = probe(server.url, prompts[:16], served.draft_tokens(pair.speculative))
        return known[server.name]

    return ask


@pytest.fixture
def checker(
    run: Run, pair: served.Pair, server_pool: ServerPool, vocabulary: Vocabulary, noise_of: Callable[[Server], Noise]
) -> Iterator[ProcessedChecker]:
    """The judge: the plain server, with its noise, beside the server that it judges."""
    if server_pool.limits.servers < 2:
        pytest.skip(
            f"box {run.box.name} has room for one server, and these tests need the judge beside the judged; "
            "the campaign's tests (-m perf) judge one after the other"
        )
    with server_pool.use(pair.reference) as server:
        yield ProcessedChecker(Reference(server.url), noise_of(server), vocabulary)


DRAFTED = "i"
"""The text of a token that EAGLE-3 often drafts in the middle of an accepted run."""


@dataclass(frozen=True, slots=True)
class Tight:
    """A server with a small prefill chunk, a KV cache that it lets more requests into than it holds, and a model that
    ends answers at a token that its draft proposes.

    switch: the file that switches planted faults, where the box has them.
    """

    server: Server
    checker: ProcessedChecker
    switch: Path


@pytest.fixture
def tight(
    pair: served.Pair, checker: ProcessedChecker, server_pool: ServerPool, vocabulary: Vocabulary,
    serve: Callable[..., Server],
) -> Tight:
    """One server for what needs another start: long prompts in chunks, ends inside accepted runs, a full cache, and the
    faults of these."""
    with FileLock(server_pool.directory / "ending_model.lock"):
        model = ending_model(vocabulary.path, server_pool.directory / "ending_model", vocabulary.encode(DRAFTED)[-1])
    options = {**pair.speculative.options, "chunked_prefill_size": CHUNK, "max_total_tokens": CACHE}
    environment = {**pair.speculative.environment, **LETS_ALL_IN}
    deployment = replace(
        pair.speculative, name="eagle3_tight", options=options, environment=environment, model=str(model)
    )
    switch = server_pool.directory / "fault_switch_tight"
    if pair.speculative.box == "cpu":
        deployment = with_switched(deployment, switch)
    words = replace(vocabulary, path=model)
    return Tight(serve(deployment), replace(checker, vocabulary=words), switch)


@pytest.fixture
def serve(server_pool: ServerPool) -> Iterator[Callable[..., Server]]:
    """`serve(deployment)`: its server, held until the test ends."""
    with ExitStack() as stack:
        yield lambda deployment: stack.enter_context(server_pool.use(deployment))
