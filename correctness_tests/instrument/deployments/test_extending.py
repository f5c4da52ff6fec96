"""docs/extending.md, followed to the letter in a copy of the project: an option and a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from following import copied, follow, run

from fixtures.deployments import stacks
from fixtures.errors import DeploymentError

pytestmark = [pytest.mark.correctness, pytest.mark.timeout(300)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copied(tmp_path)


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
from fixtures.campaign.trial import questions_of
from fixtures.campaign.loading import box_of, load_approaches
from fixtures.deployments import load_box, not_expressible, render
from fixtures.deployments.stacks import Installed, detect_stack, stack

new, box = stack("nightly"), load_box("pcie_blackwell")
here = Installed({**dict.fromkeys(stack("cu130").components), **new.components}, new.torch_cuda, "3.11.9")
found, differing = detect_stack(box.stacks, here)
assert (found.name, differing) == ("nightly", ()), (found, differing)
for deployment in box.deployments.values():
    assert not_expressible(deployment.options, new.release) == {}
    assert "--incremental-streaming-output" in render(deployment.options, new.release)
assert lacking(new.release).not_said == {"Disabling symmetric memory"}
approaches = load_approaches(deployments=box.deployments)
asked = questions_of(approaches, box_of(), box, (), ())
assert {each.approach.id for each in asked if each.stack == "nightly"} == set(approaches)
"""


def test_a_stack_is_five_files(copy: Path) -> None:
    """No other file names the stacks: boxes, arguments, approaches, plan, tox and the tests' names know the new one."""
    assert len(follow("A stack", copy)) == 5
    code, said = run(copy, "-c", STACK)
    assert code == 0, said
    code, said = run(copy, "-W", "error", "-m", "fixtures.deployments", "nightly")
    assert code == 1
    assert said.startswith("this environment is not the stack nightly: ")
    code, said = run(copy, "-m", "fixtures.campaign.plan")
    assert code == 0, said
    assert "| approach | expected | cu128 | cu130 | nightly |" in (copy / "baselines" / "plan.md").read_text("utf-8")
    code, said = run(
        copy,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--collect-only",
        "-m",
        "perf",
        "--box=pcie_blackwell",
        "perf_tests/test_campaign.py",
    )
    assert "test_outcome[eagle3-nightly]" in said, said


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
