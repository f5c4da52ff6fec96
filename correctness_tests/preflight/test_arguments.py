"""Does the installed release parse every deployment's arguments, and mean by them what we mean?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from capability_gates import lacking
from preflight_cases import BOXES, DEPLOYMENTS, EXPRESSIBLE, RELEASE, name
from sglang_parser import not_landed, parse, prepare

from fixtures.deployments import Deployment, load_box, not_expressible, render, server_environment
from fixtures.deployments.deployment import Value
from fixtures.deployments.stacks import load_stacks
from fixtures.errors import DeploymentError

pytestmark = [pytest.mark.preflight, pytest.mark.timeout(180), pytest.mark.xdist_group("preflight")]

ROOT = Path(__file__).parents[2]
NAMES = {box.name for box in BOXES}
# The cpu deployments need their platform's plugin to be parsed: further down.
HERE = [deployment for deployment in EXPRESSIBLE if deployment.box != "cpu"]


def arguments(deployment: Deployment, model: str = "/models/target") -> list[str]:
    """The whole command line but host and port; the parser does not look at the model."""
    draft = [] if deployment.draft_model is None else ["--speculative-draft-model-path", "/models/draft"]
    return ["--model-path", model, *draft, *render(deployment.options, RELEASE)]


def test_a_box_is_meant_for_this_release() -> None:
    assert BOXES, f"no box is measured on SGLang {RELEASE}"


@pytest.mark.parametrize("deployment", HERE, ids=name)
def test_the_release_parses_the_arguments(deployment: Deployment) -> None:
    parsed = parse(arguments(deployment))
    assert not_landed(deployment.options, RELEASE, parsed) == []
    assert (parsed.speculative_draft_model_path is not None) == deployment.speculative


@pytest.mark.parametrize("deployment", HERE, ids=name)
def test_the_release_builds_its_configuration(deployment: Deployment) -> None:
    """Its own `prepare_server_args`; the model `dummy` ends it where it would ask for weights or a GPU."""
    built = prepare(arguments(deployment, model="dummy"))
    assert built.tp_size == deployment.tensor_parallel
    assert built.max_running_requests == deployment.options["max_running_requests"]


def test_exactly_the_known_options_cannot_be_expressed() -> None:
    found = {option for deployment in DEPLOYMENTS for option in not_expressible(deployment.options, RELEASE)}
    assert found == lacking(RELEASE).not_expressible


def test_what_cannot_be_expressed_names_the_release_that_can() -> None:
    for deployment in DEPLOYMENTS:
        for message in not_expressible(deployment.options, RELEASE).values():
            assert f"SGLang {RELEASE} cannot express it" in message
            assert re.search(r"SGLang [0-9.]+(post[0-9]+)? (and later|to [0-9.]+) can \(", message), message


# --- The cpu box, in a process of its own: its platform is chosen when SGLang is imported.


def resolve_cpu_box(**environment: str) -> dict[str, list[str]]:
    own = server_environment(load_box("cpu").deployment("baseline"), RELEASE)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("resolve_cpu_box.py"))],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, **own, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif("cpu" not in NAMES, reason=f"the cpu box is not measured on SGLang {RELEASE}")
def test_the_release_resolves_every_cpu_deployment_as_requested() -> None:
    """Every decision SGLang takes before it starts, on this machine: none may change a stated option."""
    found = resolve_cpu_box()
    assert found == {name: [] for name in load_box("cpu").deployments}


@pytest.mark.skipif("cpu" not in NAMES, reason=f"the cpu box is not measured on SGLang {RELEASE}")
def test_a_cpu_deployment_on_another_platform_is_caught() -> None:
    """Without the platform's plugin SGLang does not know the attention backend."""
    found = resolve_cpu_box(SGLANG_PLUGINS="none")
    assert set(found) == set(load_box("cpu").deployments)
    for problems in found.values():
        assert "invalid choice: 'sglang_cpu'" in problems[0]


# --- Planted faults: each of the checks above must be able to fail.

ANY = HERE[0]


def test_a_lost_argument_is_caught() -> None:
    command = arguments(ANY)
    at = command.index("--max-running-requests")
    problems = not_landed(ANY.options, RELEASE, parse(command[:at] + command[at + 2 :]))
    assert any(problem.startswith("max_running_requests: ") for problem in problems)


@pytest.mark.parametrize(
    "misspelt", ["--max-running-request", "--max-runing-requests", "--mem-fraction-statc"]
)
def test_a_misspelt_flag_is_caught(misspelt: str) -> None:
    """Also one that argparse alone would take for an abbreviation."""
    with pytest.raises(DeploymentError, match=f"unrecognized arguments: {misspelt}"):
        parse([*arguments(ANY), misspelt, "7"])


def test_a_flag_of_another_release_is_caught() -> None:
    option: dict[str, Value] = {"decode_graph_max_batch": 128}
    others = {tuple(render(option, each.release)) for each in load_stacks().values()} - {tuple(render(option, RELEASE))}
    command = ["--model-path", "dummy", *others.pop()]
    with pytest.raises(DeploymentError, match="unrecognized arguments: --cuda-graph-max-bs"):
        parse(command)


def test_a_value_of_the_wrong_kind_is_caught() -> None:
    with pytest.raises(DeploymentError, match=r"--tp-size.*: invalid int value: 'two'"):
        parse(["--model-path", "dummy", "--tp-size", "two"])


def test_a_choice_the_release_does_not_have_is_caught() -> None:
    with pytest.raises(DeploymentError, match=r"--attention-backend.*: invalid choice: 'tritn'"):
        parse(["--model-path", "dummy", "--attention-backend", "tritn"])
