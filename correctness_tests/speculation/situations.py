"""Situations that the request matrix does not meet, each with its proof: a server that has stood still for a while (its
own pass counters), requests thrown out of the running batch (what the server counts for each, `num_retractions`), and a
model with one more end-of-sequence token, one that its draft proposes, so that answers end inside runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from processed_scores import ProcessedChecker
from request_matrix import Group, Probe
from trial import Trial

from fixtures.errors import MeasurementFailed
from fixtures.serving.server import Server
from fixtures.speculation.answers import Answer, Ask
from fixtures.speculation.reference import Passage, Reference
from fixtures.speculation.replay import Row
from fixtures.speculation.serve import DEADLINE_S, ask_all

SETTLED_S = 3.0
"""The counters are written within so many seconds of the last pass (`sglang_cpu.counters`)."""
FIRST = 5
"""Tokens of a request that its first pass and its first verify bring."""
IDLE_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Idled:
    """seconds: for how long, at least, the server had made no pass when the request came."""

    answers: tuple[Answer, ...]
    seconds: float


def idle_s(server: Server) -> float:
    """Seconds since the server's last pass, at least; 0 while its counters may still change. Raises MeasurementFailed
    without counters."""
    written = [path.stat().st_mtime for path in server.passes_dir.glob("rank*.json")]
    if not written:
        raise MeasurementFailed(f"{server.name}: no pass counters in {server.passes_dir}: is it idle?")
    passed = time.time() - max(written)
    return passed if passed > SETTLED_S else 0.0


def ask_after_idle(server: Server, asks: Sequence[Ask], seconds: float, patience_s: float = 600.0) -> Idled:
    """Wait until the server has stood still for `seconds`, however much of that is already past, and ask, one request
    after the other. Raises MeasurementFailed when it does not stand still for so long within `patience_s`."""
    end = time.monotonic() + patience_s
    while (idle := idle_s(server)) < seconds:
        if time.monotonic() > end:
            raise MeasurementFailed(f"{server.name}: it never stood still for {seconds:g} s: who else asks it?")
        time.sleep(max(0.2, min(1.0, seconds - idle)))
    return Idled(tuple(ask_all(server.url, asks, together=1)), idle)


def run_idle(server: Server, probes: Sequence[Probe], checker: ProcessedChecker, seconds: float) -> tuple[Trial, float]:
    """One request after `seconds` without a pass, judged; and for how long the server really stood still. probes: of
    this server or of the judge, which has the same words for it."""
    sure = surest(probes, checker.reference)
    group = Group("idle", (Ask("after-idle", sure.prompt, {"max_new_tokens": IDLE_TOKENS, "ignore_eos": True}),))
    idled = ask_after_idle(server, group.asks, seconds)
    return Trial(group, idled.answers, (), checker.check(group.asks, idled.answers)), idled.seconds


def surest(probes: Sequence[Probe], reference: Reference) -> Probe:
    """The probe whose first tokens are furthest ahead of any other: a wrong first pass shows there whatever it is."""

    def margin(rows: Sequence[Row]) -> float:
        best = [sorted(row.values())[-2:] for row in rows]
        return min(high - low for low, high in best)

    replays = reference.replay([Passage(probe.prompt, probe.tokens[:FIRST]) for probe in probes])
    return max(zip(probes, replays, strict=True), key=lambda each: margin(each[1]))[0]


LEAST_SHARE = 0.5
LEAST_FULL = 3
TRIES = 3
TOKENS = 64
CROWDED_TOKENS = 112
"""Of one answer: those that are let in outgrow the cache before the first of them ends."""
REQUESTS = 12
RETRACTIONS = 8
RETRACT_EVERY_S = 0.2


async def retract_running(session: aiohttp.ClientSession, url: str) -> None:
    """Throw all running requests out of the batch, again and again; each time they come back and are prefilled anew.

    By SGLang's own pause of generation with retraction, which is what a full KV cache does to some of them.
    """
    for _ in range(RETRACTIONS):
        await asyncio.sleep(RETRACT_EVERY_S)
        await asyncio.shield(_retract(session, url))


async def _retract(session: aiohttp.ClientSession, url: str) -> None:
    limit = aiohttp.ClientTimeout(total=DEADLINE_S)
    for path, body in (("pause_generation", {"mode": "retract"}), ("continue_generation", {})):
        async with session.post(f"{url}/{path}", json=body, timeout=limit) as response:
            if response.status != 200:
                said = (await response.read())[:200].decode(errors="replace")
                cause = "refused" if response.status in (400, 404, 422) else "http_error"
                raise MeasurementFailed(f"{path}: the server answered {response.status}: {said}", cause)


def run_retracted(url: str, probes: Sequence[Probe], checker: ProcessedChecker) -> Trial:
    """Requests that were all retracted while they ran, and came back, judged. Raises MeasurementFailed when fewer than
    half of the answers count a retraction, in each of several tries."""
    cap = {"max_new_tokens": TOKENS, "ignore_eos": True}
    asks = [Ask(f"retracted-{number}", probe.prompt, cap) for number, probe in enumerate(probes[:REQUESTS])]
    for _ in range(TRIES):
        answers = ask_all(url, asks, together=len(asks), meanwhile=retract_running)
        struck = sum(answer.retractions > 0 for answer in answers)
        if struck >= LEAST_SHARE * len(asks):
            return Trial(Group("retracted", tuple(asks)), tuple(answers), (), checker.check(asks, answers))
    raise MeasurementFailed(f"{struck} of {len(asks)} requests were retracted: ask for longer answers")


def run_full_cache(url: str, prompts: Sequence[tuple[int, ...]], checker: ProcessedChecker) -> Trial:
    """More at once than the KV cache holds, of a server that lets them all in: it retracts some by itself. Raises
    MeasurementFailed when fewer than a few answers count a retraction: a small cache alone may make requests wait."""
    cap = {"max_new_tokens": CROWDED_TOKENS, "ignore_eos": True}
    asks = [Ask(f"crowded-{number}", prompt, cap) for number, prompt in enumerate(prompts)]
    answers = ask_all(url, asks, together=len(asks))
    struck = sum(answer.retractions > 0 for answer in answers)
    if struck < LEAST_FULL:
        raise MeasurementFailed(f"{struck} of {len(asks)} requests were retracted: is the KV cache too large?")
    return Trial(Group("full_cache", tuple(asks)), tuple(answers), (), checker.check(asks, answers))


_CONFIGS = ("config.json", "generation_config.json")


def ending_model(model: Path, folder: Path, token: int) -> Path:
    """A folder of links to the files of `model`, whose configuration ends answers at `token` too."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        link = folder / file.name
        if file.name in _CONFIGS:
            document = json.loads(file.read_text(encoding="utf-8"))
            known = document.get("eos_token_id")
            ids = known if isinstance(known, list) else [] if known is None else [known]
            link.write_text(json.dumps({**document, "eos_token_id": [*ids, token]}, indent=1), encoding="utf-8")
        elif not link.exists():
            link.symlink_to(file.resolve())
    return folder
