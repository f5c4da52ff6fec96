"""docs/extending.md, followed to the letter in a copy of the project: an all-reduce back end."""

from __future__ import annotations

from pathlib import Path

import pytest
from following import copied, follow, run

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(300)]

SERVED = """
from fixtures.campaign.loading import load_approaches
from fixtures.deployments import load_box, render

box = load_box("pcie_blackwell")
assert "--enable-star-all-reduce" in render(box.deployment("star").options, "0.5.23")
assert "--enable-star-all-reduce" not in render(box.deployment("baseline_bs128").options, "0.5.23")
assert load_approaches(deployments=box.deployments)["star"].all_reduce == ("star",)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as the document leaves it."""
    there = copied(tmp_path_factory.mktemp("project"))
    assert len(follow("An all-reduce back end", there)) == 5
    return there


def test_the_tests_take_it_up(copy: Path) -> None:
    chosen = "star-cpu-2 and (serving or odd or special or bound)"
    where = "correctness_tests/allreduce/test_backends.py"
    results = f"--results={copy / 'results'}"
    code, said = run(copy, "-m", "pytest", "-p", "no:cacheprovider", "-q", results, "-k", chosen, where)
    assert code == 0, said
    assert "4 passed" in said
    assert "star at world size 2 on cpu, bf16" in said, "its claim is checked"


def test_a_server_and_the_campaign_know_it(copy: Path) -> None:
    code, said = run(copy, "-c", SERVED)
    assert code == 0, said
    code, said = run(copy, "-m", "fixtures.campaign.plan")
    assert code == 0, said
    assert "Star all-reduce" in (copy / "baselines" / "plan.md").read_text("utf-8")
