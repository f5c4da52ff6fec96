"""Bad input to a whole run: one clear line, before anything is measured, and never a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

ROOT_BOX = "fixtures/deployments/cpu.toml"


@pytest.fixture
def run_suite(pytestconfig, tmp_path):
    """Run `pytest -m perf` with arguments, as a user would; returns the process."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "KIMI_"))}
        environment["PERF_SUITE_LOCK"] = str(tmp_path)  # whoever measures here
        command = [sys.executable, "-m", "pytest", "-m", "perf", "-p", "no:cacheprovider", "-q"]
        given = any(each.startswith(("--results", "--from-results")) for each in arguments)
        results = [] if given else [f"--results={tmp_path / 'r'}"]
        return subprocess.run(
            [*command, *results, *arguments], cwd=pytestconfig.rootpath, env=environment | variables,
            capture_output=True, text=True, timeout=240,
        )

    return run


def complaint(done: subprocess.CompletedProcess) -> str:
    """The one line. A usage error ends with pytest's exit code 4 (or 3 from a hook), without a traceback."""
    text = done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert len(lines) == 1, text
    return lines[0]


def box_file(tmp_path, pytestconfig, change) -> str:
    path = tmp_path / "cpu.toml"
    path.write_text(change((pytestconfig.rootpath / ROOT_BOX).read_text()))
    return f"--box={path}"


CASES = {
    "unknown box": (["--box=nobox"], "unknown box 'nobox'.*cpu, pcie_blackwell"),
    "unknown deployment": (["--deployment=eagel3"], "unknown deployment 'eagel3'.*eagle3"),
    "unknown workload": (["--workload=nope"], "workload 'nope' is none of .*single_stream"),
    "no starts": (["--starts=0"], "--starts 0: give 1 or more"),
    "negative confirmation": (["--confirm-starts=-1"], "--confirm-starts -1"),
    "no time": (["--max-minutes=0"], "--max-minutes 0"),
    "no budget": (["--budget=soon"], "--budget soon: is no time: give for example 8h"),
    "an empty budget": (["--budget="], '--budget "": give a value'),
    "a stretch of no time": (["--budget=22:00-22:00"], "--budget 22:00-22:00: is no stretch of a day"),
    "a rehearsal of records": (["--rehearse", "--box=pcie_blackwell", "--from-results=."], "no use for --from-results"),
    "a rehearsal for a baseline": (
        ["--rehearse", "--box=pcie_blackwell", "--save-baseline=why", "--starts=10"], "no use for --save-baseline"
    ),
    "a rehearsal of this machine": (["--rehearse"], "--rehearse: rehearses another machine's box: name it with --box"),
    "a rehearsal of the cpu box": (["--rehearse", "--box=cpu"], "--rehearse: box cpu runs on any machine"),
    "two budgets": (["--budget=1h", "--max-minutes=60"], "--budget 1h and --max-minutes 60: say the same"),
    "a budget to judge in": (["--from-results=/tmp", "--budget=1h"], "--budget 1h: nothing is measured with"),
    "going on elsewhere": (["--resume=/tmp", "--results=/tmp/r"], "--resume /tmp: goes on .*leave out --results"),
    "no such control": (["--control=basline"], "--control basline: unknown deployment.*baseline"),
    "a control and none": (["--no-control", "--control=tp2"], "--no-control: has no rounds for --control"),
    "odd blocks": (["--against=baseline", "--blocks=3"], "--blocks 3: give an even number"),
    "a baseline of few": (["--save-baseline=ok", "--starts=9"], "--save-baseline: 9 starts are too few.*--starts 10"),
    "no reason": (["--save-baseline= "], "give the reason"),
    "records of an unset variable": (["--from-results="], '--from-results "": give a value'),
    "an empty side": (["--against="], '--against "": give a value'),
    "no name": (["--deployment=,"], '--deployment ",": names nothing'),
    "against itself": (["--against=tp2", "--deployment=tp2"], "--against tp2: is --deployment tp2 itself"),
    "one file for two": (["--html=/tmp/x", "--markdown=/tmp/x"], "--html and --markdown /tmp/x: are the same file"),
    "a history without its page": (["--history=/tmp"], "--history: is shown on the page: give --html"),
    "baselines in a file": (["--baselines=/etc/passwd"], "--baselines /etc/passwd: is no folder"),
    "a folder for records that are there": (
        ["--from-results=/tmp", "--results=/tmp/r"], "--results /tmp/r: nothing is measured with --from-results"
    ),
    "a time to judge in": (
        ["--from-results=/tmp", "--max-minutes=3"], "--max-minutes 3: nothing is measured with --from-results"
    ),
    "a page below a file": (["--html=/etc/passwd/x.html"], "--html /etc/passwd/x.html: /etc/passwd: Not a directory"),
    "a page where none can be": (["--html=/proc/x.html"], "--html /proc/x.html: /proc: .*that can be written"),
    "workers": (["-n2"], "never share the machine"),
    "no records": (["--from-results=/nonexistent"], "/nonexistent: no such folder"),
    "results in the way": (["--results=/proc/version/x"], "/proc/version/x.*give a writable folder"),
    "against nothing": (["--against=nope"], "--against 'nope' is no deployment of this box, no stack"),
    "another machine": (
        ["--box=pcie_blackwell"], "box pcie_blackwell needs 8 x RTX PRO 6000 Blackwell .*--any-hardware to measure"
    ),
    "model not named": (
        ["--box=pcie_blackwell", "--any-hardware", "--deployment=baseline_bs128"],
        "KIMI_K25_MODEL is not set; export KIMI_K25_MODEL=",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_options_are_checked_first(run_suite, case):
    arguments, expected = CASES[case]
    assert re.search(expected, complaint(run_suite(*arguments)))


BOX_FAULTS = {
    "TOML syntax": (lambda text: text + "\n[broken\n", r"cpu\.toml: not valid TOML: .*line \d+"),
    "unknown key": (lambda text: text + "\nsurprise = 1\n", "surprise"),
    "unknown stack": (lambda text: text.replace('["cpu"]', '["cpuu"]'), r"cpu\.toml:3: stacks: unknown stack 'cpuu'"),
    "wrong type": (lambda text: text.replace("max_running_requests = 48", 'max_running_requests = "48"'), "48"),
    "missing model path": (
        lambda text: text.replace('model = "tiny_pair:target"', 'model = "/nonexistent/model"'), "/nonexistent/model"
    ),
    "option of another release": (
        lambda text: text.replace("sleep_on_idle = true", "sleep_on_idle = true\ngone_option = 1"), "gone_option"
    ),
}


@pytest.mark.parametrize("fault", BOX_FAULTS)
def test_the_box_is_checked_first(run_suite, tmp_path, pytestconfig, fault):
    change, expected = BOX_FAULTS[fault]
    found = complaint(run_suite(box_file(tmp_path, pytestconfig, change), "--deployment=baseline"))
    assert re.search(expected, found)
    assert "cpu.toml" in found


BASELINE_FAULTS = {
    "not JSON": (lambda data: "{", "not JSON"),
    "breaks the schema": (lambda data: json.dumps(data | {"provenance": "guess"}), "guess"),
    "a zero": (lambda data: json.dumps(data).replace("150.0", "0.0"), "0"),
    "NaN": (lambda data: json.dumps(data).replace("150.0", "NaN"), "NaN is no JSON number"),
    "an empty list": (lambda data: json.dumps(data).replace("[150.0, 151.0]", "[]"), "empty|starts"),
}


@pytest.mark.parametrize("fault", BASELINE_FAULTS)
def test_a_bad_baseline_is_told_before_anything_is_measured(run_suite, tmp_path, fault):
    metric = {"name": "decode_tok_s", "workload": "single_stream", "unit": "tok/s"}
    metric |= {"kind": "timing", "better": "higher"}
    data = {
        "schema": "baseline/1", "box": "cpu", "stack": "cpu", "deployment": "baseline", "provenance": "measured",
        "reason": "test", "saved_at": "2026-01-01T00:00:00Z", "environment": {"machine": "x"}, "configuration": {},
        "workloads": {}, "starts": ["a", "b"],
        "metrics": {"single_stream/decode_tok_s": metric | {"starts": [150.0, 151.0]}},
    }
    path = tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json"
    path.parent.mkdir(parents=True)
    break_it, expected = BASELINE_FAULTS[fault]
    path.write_text(break_it(data))
    found = complaint(run_suite("--box=cpu", "--deployment=baseline", f"--baselines={tmp_path / 'baselines'}"))
    assert "baseline.json" in found
    assert re.search(expected, found)
