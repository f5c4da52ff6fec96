"""A perf test that cannot run where it is asked never looks like one that passed: the run ends with one line."""

from __future__ import annotations

import pytest
from start_cases import write_pairs, write_starts

WORKERS = "perf tests never share the machine: leave out -n"


@pytest.fixture(scope="module")
def folder(suite, tmp_path_factory):
    """Records of a regression (`slow`), and the baselines that show it."""
    folder = tmp_path_factory.mktemp("records")
    write_starts(folder / "old", 10)
    code, text = suite("-m", "perf", *given(folder), f"--from-results={folder / 'old'}", "--save-baseline=ten", "-q")
    assert code == 0, text
    write_starts(folder / "slow", 5, name="n", seed=3, speed=90)
    write_starts(folder / "slow", 5, name="f", seed=4, speed=90, role="stage2")
    return folder


@pytest.fixture
def slow(folder):
    return folder / "slow"


@pytest.fixture
def ask(suite, folder, tmp_path_factory):
    """Ask about the plain deployment without saying `-m perf`. A run that did not begin leaves no folder behind."""
    scratch = tmp_path_factory.mktemp("scratch")
    own = {"TMPDIR": str(scratch), "PERF_SUITE_LOCK": str(scratch)}
    yield lambda *arguments, **variables: suite(*arguments, *given(folder), **own | variables)
    assert not list(scratch.glob("servers-*"))


def given(folder) -> list[str]:
    return ["--box=cpu", f"--baselines={folder / 'baselines'}", "--deployment=baseline", "--workload=single_stream"]


def refused(answer: tuple[int, str]) -> str:
    """The one line of a run that did not begin."""
    code, text = answer
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "Traceback" not in text
    assert " passed" not in text
    assert " skipped" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    return line


@pytest.mark.parametrize(
    "workers", [["-n2"], ["-n1"], ["-d", "--tx=2*popen"], ["-m", "perf and not long", "--dist=each", "--tx=popen"]]
)
def test_records_are_not_judged_by_workers(ask, slow, workers):
    assert WORKERS in refused(ask("perf_tests", f"--from-results={slow}", *workers))


@pytest.mark.parametrize(
    "arguments",
    [["-m", "perf and not long", "perf_tests", "-d", "--tx=popen"], ["perf_tests/test_kv_capacity.py"]],
    ids=["-d", "by the environment"],
)
def test_nothing_is_measured_by_workers(ask, tmp_path, arguments):
    """Whatever selects the test: a folder, a mark, a file; and whatever asks for the workers."""
    variables = {} if len(arguments) > 1 else {"PYTEST_ADDOPTS": "--numprocesses=1"}
    line = refused(ask(*arguments, f"--results={tmp_path / 'r'}", **variables))
    assert WORKERS in line
    assert "perf_tests/test_" in line
    assert not (tmp_path / "r").exists()


def test_a_perf_test_that_stands_elsewhere_fails_in_a_worker(suite, pytestconfig, tmp_path):
    """The controller knows tests by their place alone; the mark holds wherever they stand."""
    (tmp_path / "test_elsewhere.py").write_text("import pytest\n\n@pytest.mark.perf\ndef test_speed():\n    pass\n")
    code, text = suite(str(tmp_path), "-n1", f"--rootdir={pytestconfig.rootpath}", "-c", "pyproject.toml",
                       "-p", "fixtures.plugin")
    assert code == pytest.ExitCode.TESTS_FAILED, text
    assert WORKERS in text


def test_records_are_judged_by_perf_tests_alone(ask, slow):
    """Without `-m perf` too: nothing else is collected, so no server is started."""
    code, text = ask(f"--from-results={slow}", "-q")
    assert code == 1, text
    assert "regression" in text
    code, text = ask(f"--from-results={slow}", "--collect-only", "-q")
    assert code == 0, text
    collected = [line for line in text.splitlines() if "::" in line]
    assert collected
    assert all(line.startswith("perf_tests/") for line in collected)


@pytest.mark.parametrize("arguments", [["-k", "no_such_test"], ["-m", "not perf"]], ids=lambda each: each[0])
def test_records_that_no_test_judges(ask, slow, arguments):
    assert "no perf test is selected, so nothing would be judged" in refused(ask(f"--from-results={slow}", *arguments))


@pytest.mark.parametrize(
    "option", [["--against=HEAD"], ["--html=PAGE"], ["--save-baseline=new", "--starts=10"]], ids=lambda each: each[0]
)
def test_what_only_perf_tests_answer_is_not_left_unanswered(ask, tmp_path, option):
    given = [each.replace("PAGE", str(tmp_path / "page.html")) for each in option]
    line = refused(ask("correctness_tests/instrument/session/test_replay_clock.py", *given))
    assert f"{option[0].split('=')[0]} " in line
    assert "no perf test is selected" in line


@pytest.mark.parametrize("switch", ["--benchmark-skip", "--benchmark-only"])
def test_a_regression_is_not_skipped_by_another_plugin(ask, slow, switch):
    assert f"{switch}: would skip perf tests" in refused(ask("-m", "perf", f"--from-results={slow}", switch))


def test_a_run_of_which_nothing_can_run_here_does_not_pass(suite, tmp_path):
    """The approaches of another box: this machine can try none of them."""
    line = refused(suite("perf_tests/test_campaign.py", "--box=cpu", f"--results={tmp_path / 'r'}", "-q"))
    assert "perf tests that were asked for can run: " in line
    assert "this run's is cpu" in line


def test_start_pairs_are_judged_without_a_mark(suite, tmp_path):
    write_pairs(tmp_path / "pairs", [0.0] * 12)
    code, text = suite("--box=cpu", f"--from-results={tmp_path / 'pairs'}", "-q")
    assert code == 0, text
    assert "no change" in text
