"""docs/extending.md, followed to the letter in a copy of the project: an all-reduce back end."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
TREE = ("baselines", "correctness_tests", "docs", "fixtures", "perf_tests", "conftest.py", "pyproject.toml", "tox.ini")
PLACES = {"backends.py": "_ANYWHERE = (\n", "options.py": "_TABLE = (\n"}
"""After which line a block goes; at the end of the others."""
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
    there = tmp_path_factory.mktemp("project")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, there / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, there / name)
    for name, block in blocks():
        path, place = there / name, PLACES.get(Path(name).name)
        text = path.read_text("utf-8") if path.exists() else ""
        added = text.replace(place, place + textwrap.indent(block, "    ")) if place else f"{text}\n{block}"
        assert added != text
        path.write_text(added.lstrip(), "utf-8")
    return there


def blocks() -> list[tuple[str, str]]:
    """Each indented block of the section, after the file that is named before it."""
    text = (ROOT / "docs" / "extending.md").read_text("utf-8").split("\n## An all-reduce back end\n")[1]
    found = re.findall(
        r"^`([\w/.]+)`[^\n]*\n(?:\S[^\n]*\n)*\n((?: {4}[^\n]*\n|\n(?= {4}|\n))+)", text.split("\n## ")[0], re.M
    )
    return [(name, textwrap.dedent(block)) for name, block in found]


def run(copy: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-B", *arguments], cwd=copy, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def test_five_files_are_all() -> None:
    assert len(blocks()) == 5


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
