"""Parse and resolve the cpu deployments as SGLang does before it starts, and compare with what was requested.

`python resolve_cpu_box.py`, with a cpu server's environment: it chooses the platform when SGLang is imported.
Prints {deployment: [problem, ...]} as JSON on the last line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue

from sglang_parser import not_landed, parse, prepare

from fixtures.deployments import Deployment, load_box, server_arguments
from fixtures.deployments.effective import contradictions, differences
from fixtures.deployments.stacks import sglang_release

# Settled when the memory pools are built, which is after this.
AT_START = {"max_total_tokens"}
RELEASE = sglang_release()


def problems(deployment: Deployment) -> list[str]:
    """What the release's parser and its resolution make of the deployment that was not asked for."""
    command = server_arguments(deployment, RELEASE, os.environ)
    lost = not_landed(deployment.options, RELEASE, parse(command))
    built = prepare(command)
    built.resolve_once()
    options = {key: value for key, value in deployment.options.items() if key not in AT_START}
    info = {**built.resolved_dict(), "version": RELEASE}
    return lost + [str(found) for found in contradictions(differences(options, info, RELEASE))]


def _answer(deployment: Deployment, answers: multiprocessing.Queue[tuple[str, list[str]]]) -> None:
    try:
        found = problems(deployment)
    except BaseException as error:  # SystemExit too: the platform refuses so
        found = [f"{type(error).__name__}: {error}"]
    answers.put((deployment.name, found))


def main() -> int:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    # Resolution writes to the environment: each deployment in a fork of its own, after one costly import.
    context = multiprocessing.get_context("fork")
    told: dict[str, list[str]] = {}
    for deployment in load_box("cpu").deployments.values():
        answers: multiprocessing.Queue[tuple[str, list[str]]] = context.Queue()
        process = context.Process(target=_answer, args=(deployment, answers))
        process.start()
        try:
            name, found = answers.get(timeout=60)
        except queue.Empty:
            name, found = deployment.name, ["no answer in 60 s"]
        process.join(timeout=5)
        process.kill()
        told[name] = found
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
