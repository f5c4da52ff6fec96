"""docs/extending.md, followed to the letter in a copy of the project: an option and a stack."""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fixtures.deployments import stacks
from fixtures.errors import DeploymentError

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(300)]

TREE = ("baselines", "correctness_tests", "docs", "fixtures", "perf_tests", "conftest.py", "pyproject.toml", "tox.ini")
ROOT = Path(__file__).parents[3]


def parts_of(title: str) -> list[tuple[str, str]]:
    """The indented blocks of a section of the document, each after the file that was named last."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]
    named, parts, block = "", [], ""
    for line in [*section.splitlines(), "end"]:
        if line.startswith("    ") or (block and not line):
            block += f"{line}\n"
            continue
        if block:
            parts.append((named, textwrap.dedent(block).strip()))
            block = ""
        named = next((word for word in re.findall(r"`([\w/.]+)`", line) if (ROOT / word).is_file()), named)
    return parts


def change(path: Path, block: str) -> None:
    """The block where the document says that it belongs: a key in its place, else a table at the end."""
    text = path.read_text(encoding="utf-8")
    match path.name:
        case "options.py":
            text = text.replace("_TABLE = (\n", f"_TABLE = (\n    {block}\n")
        case "pyproject.toml":
            text = text.replace("[dependency-groups]\n", f"[dependency-groups]\n{block}\n")
        case "pcie_blackwell.toml":
            text = re.sub(r"^stacks = .*$", block, text, flags=re.MULTILINE)
        case _:
            text = f"{text}\n{block}\n"
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def follow(title: str, copy: Path) -> set[str]:
    """The files that following a section changes."""
    parts = parts_of(title)
    for name, block in parts:
        change(copy / name, block)
    changed = {name for name, _ in parts}
    assert not [name for name in changed if filecmp.cmp(ROOT / name, copy / name, shallow=False)]
    return changed


def run(copy: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-B", *arguments]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


OPTION = """
from pathlib import Path
from fixtures.deployments import load_box, render
from fixtures.deployments.effective import differences
from fixtures.errors import DeploymentError

box = Path("fixtures/deployments/cpu.toml")
text = box.read_text()
box.write_text(text.replace('log_level = "info"', 'log_level = "info"\\ndecode_log_interval = 20'))
options = load_box("cpu").deployment("tp2_eagle3").options
for release in ("0.5.10.post1", "0.5.23"):
    arguments = render(options, release)
    assert arguments[arguments.index("--decode-log-interval") + 1] == "20", arguments
asked = {"decode_log_interval": 20}
told = {"version": "0.5.23", "decode_log_interval": 40}
assert [str(each) for each in differences(asked, told, "0.5.23")] == [
    "decode_log_interval: requested 20, effective 40"
]
box.write_text(text.replace('log_level = "info"', "decode_log_interval = 0"))
try:
    load_box("cpu")
except DeploymentError as error:
    print(error)
"""


def test_an_option_is_one_line_in_one_file(copy: Path) -> None:
    assert follow("An option", copy) == {"fixtures/deployments/options.py"}
    code, said = run(copy, "-c", OPTION)
    assert code == 0, said
    assert "cpu.toml:" in said
    assert "decode_log_interval = 0 must be at least 1" in said


STACK = """
import sys
sys.path.insert(0, "correctness_tests/preflight")
from capability_gates import lacking
from fixtures.campaign.arms import questions_of
from fixtures.campaign.loading import box_of, load_approaches
from fixtures.deployments import load_box, not_expressible, render
from fixtures.deployments.stacks import Installed, detect_stack, stack

new, box = stack("cu131"), load_box("pcie_blackwell")
here = Installed({**dict.fromkeys(stack("cu130").components), **new.components}, new.torch_cuda, "3.11.9")
found, differing = detect_stack(box.stacks, here)
assert (found.name, differing) == ("cu131", ()), (found, differing)
for deployment in box.deployments.values():
    assert not_expressible(deployment.options, new.release) == {}
    assert "--incremental-streaming-output" in render(deployment.options, new.release)
assert lacking(new.release).not_said == {"Disabling symmetric memory"}
approaches = load_approaches(deployments=box.deployments)
asked = questions_of(approaches, box_of(), box, (), ())
assert {each.approach.id for each in asked if each.stack == "cu131"} == set(approaches)
"""


def test_a_stack_is_five_files(copy: Path) -> None:
    """No other file names the stacks: boxes, arguments, approaches, plan, tox and the tests' names know the new one."""
    assert len(follow("A stack", copy)) == 5
    code, said = run(copy, "-c", STACK)
    assert code == 0, said
    code, said = run(copy, "-W", "error", "-m", "fixtures.deployments", "cu131")
    assert code == 1
    assert said.startswith("this environment is not the stack cu131: ")
    code, said = run(copy, "-m", "fixtures.campaign.plan")
    assert code == 0, said
    assert "| approach | expected | cu128 | cu130 | cu131 |" in (copy / "baselines" / "plan.md").read_text("utf-8")
    code, said = run(copy, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--collect-only", "-m", "perf",
                     "--box=pcie_blackwell", "perf_tests/test_campaign.py")
    assert "test_outcome[eagle3-cu131]" in said, said


WRONG = {
    "no device": ('device = "cpu"\n', "", r"stacks\.toml:\d+: cpu: 'device' is a required property"),
    "another key": ('device = "cpu"', 'devise = "cpu"', r"no key 'devise' .*did you mean 'device'"),
    "no version": ('sglang-cpu = "0.1.0"', 'sglang-cpu = ">=0.1"', r"sglang-cpu = '>=0\.1' must match"),
    "no SGLang": ('sglang = "0.5.23"\n', "", r"components: 'sglang' is a required property"),
    "no TOML": ("[cpu]", "[cpu", r"stacks\.toml: not valid TOML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_the_stacks_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, line = WRONG[case]
    text = stacks.FILE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / stacks.FILE.name
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(stacks, "FILE", path)
    with pytest.raises(DeploymentError, match=line) as caught:
        stacks.load_stacks.__wrapped__()
    assert "\n" not in str(caught.value)
