"""A whole run on records alone: baselines are saved from them, and slower records are a regression."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import campaign_cases as gpu
import pytest
from start_cases import ENVIRONMENT, write_pairs, write_starts

from fixtures.deployments.loading import FOLDER
from fixtures.profile.figures import Profile
from fixtures.records.metric import Metric
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED


@pytest.fixture
def saved(judge_stream, tmp_path):
    """A baseline of ten starts."""
    write_starts(tmp_path / "old", 10)
    code, text = judge_stream(tmp_path / "old", "--save-baseline=ten good starts")
    path = tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json"
    assert path.exists(), text
    assert code == 0, text
    assert "no comparable baseline is no fault here" in text
    assert json.loads(path.read_text())["reason"] == "ten good starts"
    return path


def test_the_same_speed_passes_and_a_slower_one_does_not(judge_stream, saved, tmp_path):
    write_starts(tmp_path / "same", 5, name="n", seed=2)
    code, text = judge_stream(tmp_path / "same")
    assert code == 0, text
    assert text.count("no change") >= 3

    write_starts(tmp_path / "slow", 5, name="n", seed=3, speed=90)
    write_starts(tmp_path / "slow", 5, name="f", seed=4, speed=90, role="stage2")
    code, text = judge_stream(tmp_path / "slow")
    assert code == 1, text
    assert "regression" in text
    assert "confirmed by 5 fresh starts" in text

    # The table is on the terminal, with the change and where the records are.
    assert re.search(r"tok/s ± \S+ %  +-\d+\S* % .* ✗ regression", text)
    assert f"--from-results={tmp_path / 'slow'}" in text


def test_one_kernel_more_in_a_pass_is_a_regression_after_one_start(judge_folder, tmp_path):
    """One start of each side was profiled; their times are the same."""
    before = Profile("DECODE", 1, 8, 1, True, {"GEMM": 49, "copy": 229}, {}, (), (), {}, ())
    write_starts(tmp_path / "old", 1, profile=before)
    write_starts(tmp_path / "old", 9, name="o", seed=2)
    judge_folder(tmp_path / "old", "--save-baseline=ten")
    more = replace(before, counts={"GEMM": 49, "copy": 230})
    write_starts(tmp_path / "new", 1, name="n", seed=3, profile=more)
    code, text = judge_folder(tmp_path / "new")
    assert code == 1, text
    assert "baseline pass_kernels: regression: +1 copy, 49 GEMMs as before" in " ".join(text.split())


def judged(path, key="single_stream/decode_tok_s"):
    """Verdict, level and share of one metric, as the JSON lines of a run have them."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (found,) = [line for line in lines if line.get("key") == key and line.get("deployment") == "baseline"]
    return found["verdict"], found["level"], found["share"]


def test_what_is_asked_changes_no_verdict_and_no_level(judge_folder, saved, tmp_path):
    """Only what was measured does."""
    write_starts(tmp_path / "slow", 5, name="n", seed=3, speed=91.5)
    narrowed = {"all": (), "k": ("-k", "decode_rate"), "w": ("--workload=single_stream",)}
    found = {}
    for name, arguments in narrowed.items():
        judge_folder(tmp_path / "slow", f"--jsonl={tmp_path / name}.jsonl", *arguments)
        found[name] = judged(tmp_path / f"{name}.jsonl")
    assert len({*found.values()}) == 1, found
    assert 0 < found["all"][2] < 0.01


def test_a_run_and_a_comparison_say_the_same_of_the_same_records(suite, judge_folder, tmp_path):
    """Ten starts, 8.5 % slower, that nobody confirmed: one look decides, at one level."""
    write_starts(tmp_path / "old", 10)
    judge_folder(tmp_path / "old", "--save-baseline=ten")
    write_starts(tmp_path / "new", 10, name="n", seed=3, speed=91.5)
    code, text = judge_folder(tmp_path / "new", f"--jsonl={tmp_path / 'run.jsonl'}")
    assert (code, judged(tmp_path / "run.jsonl")[0]) == (1, "regression"), text
    assert "in one look at 10 starts" in text
    code, text = suite(f"--compare={tmp_path / 'old'},{tmp_path / 'new'}")
    assert code == 1, text
    assert "regression: baseline single_stream/decode_tok_s" in text


def test_a_baseline_may_be_of_several_runs(judge_stream, tmp_path):
    """It then knows what its sessions differ by."""
    for night in range(5):
        write_starts(tmp_path / "nights", 2, name=f"n{night}", seed=night, run=f"night{night}")
    code, text = judge_stream(tmp_path / "nights", "--save-baseline=five nights")
    assert code == 0, text
    stored = json.loads((tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json").read_text())
    assert len(stored["sessions"]) == 10
    assert len({*stored["sessions"]}) == 5
    code, text = judge_stream(tmp_path / "nights")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "baseline was measured by several runs: give the folder of one run" in text


def test_another_machine_is_not_compared(judge_stream, saved, tmp_path):
    write_starts(tmp_path / "there", 5, name="n", speed=50, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_stream(tmp_path / "there")
    assert code == 0, text
    assert "no comparable baseline" in text
    assert "machine" in text


def test_an_exact_metric_is_compared_on_any_machine(judge_stream, saved, tmp_path):
    write_starts(tmp_path / "there", 1, name="n", kv=19999, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_stream(tmp_path / "there")
    assert code == 1, text
    assert "19999" in text


def test_no_baseline_is_saved_over_an_alarm(judge_stream, saved, tmp_path):
    before = saved.read_text()
    write_starts(tmp_path / "slow", 10, name="n", seed=3, speed=80)
    code, text = judge_stream(tmp_path / "slow", "--save-baseline=it is fine")
    assert code == 1, text
    assert "open alarm" in text
    assert saved.read_text() == before


def test_what_a_run_did_not_ask_about_is_judged_before_it_is_saved(judge_stream, saved, tmp_path):
    """A test file or `-k` asks about some metrics; a baseline replaces all."""
    before = saved.read_text()
    write_starts(tmp_path / "slow", 10, name="n", seed=3, speed=80)
    code, text = judge_stream(tmp_path / "slow", "--save-baseline=the capacity is right", "-k", "capacity")
    assert "kv_tokens" in text
    assert code == 1, text
    assert "single_stream/decode_tok_s: open alarm" in text
    assert saved.read_text() == before


def test_deployments_that_were_not_asked_about_are_not_saved(judge_stream, tmp_path):
    write_starts(tmp_path / "two", 10)
    write_starts(tmp_path / "two", 10, name="t", deployment="tp2")
    code, text = judge_stream(tmp_path / "two", "--save-baseline=one of them")
    assert code == 0, text
    assert [path.stem for path in (tmp_path / "baselines").rglob("*.json")] == ["baseline"]


def test_no_metric_of_a_baseline_is_lost(judge_stream, saved, tmp_path):
    more = Metric("decode_tok_s", 50.0, "tok/s", "timing", "higher", "long_prompt", 12)
    data = json.loads(saved.read_text())
    known = data["metrics"]["single_stream/decode_tok_s"]
    data["metrics"][more.key] = known | {"workload": "long_prompt"}
    data["workloads"]["long_prompt"] = data["environment"]["workload long_prompt"] = "w"
    saved.write_text(json.dumps(data))
    write_starts(tmp_path / "same", 10, name="n", seed=2)
    code, text = judge_stream(tmp_path / "same", "--save-baseline=one workload")
    assert code == 1, text
    assert "long_prompt/decode_tok_s would be lost: measure all workloads" in text
    assert json.loads(saved.read_text()) == data


def test_a_stopped_run_saves_no_baseline(judge_stream, tmp_path, monkeypatch):
    (tmp_path / "stopper.py").write_text("def pytest_runtest_teardown():\n    raise KeyboardInterrupt\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write_starts(tmp_path / "ten", 10)
    code, text = judge_stream(tmp_path / "ten", "--save-baseline=ten", "-p", "stopper")
    assert code != 0, text
    assert "baseline not saved: the run was stopped before its end" in text
    assert not (tmp_path / "baselines").exists()


def test_an_exact_metric_that_varies_is_left_out_of_a_baseline(judge_stream, tmp_path):
    """Kept, it would fail every later run, whatever that measured."""
    write_starts(tmp_path / "vary", 9)
    write_starts(tmp_path / "vary", 1, name="o", kv=20001.0)
    code, text = judge_stream(tmp_path / "vary", "--save-baseline=ten")
    assert code == 0, text
    assert "left out of the baseline of baseline: kv_tokens is 20000 to 20001 in these starts" in text
    stored = json.loads((tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json").read_text())
    assert "kv_tokens" not in stored["metrics"]
    assert "single_stream/decode_tok_s" in stored["metrics"]


def test_starts_of_two_environments_are_no_run(judge_stream, saved, tmp_path):
    """Two folders of one name copied into one, or a driver changed in between."""
    write_starts(tmp_path / "mixed", 3, name="n", seed=2)
    write_starts(tmp_path / "mixed", 2, name="o", seed=2, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_stream(tmp_path / "mixed")
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "are of two environments: machine" in text


def test_too_few_starts_are_no_baseline(judge_stream, tmp_path):
    write_starts(tmp_path / "few", 3)
    code, text = judge_stream(tmp_path / "few", "--save-baseline=three")
    assert code == 1, text
    assert "too few" in text


def test_a_failed_start_fails_the_run(judge_stream, saved, tmp_path):
    failure = {"cause": "killed", "message": "baseline: the server was killed", "lines": []}
    write_starts(tmp_path / "dead", 1, name="n", status="measurement failed", failure=failure)
    code, text = judge_stream(tmp_path / "dead")
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "baseline: the server was killed" in text


def test_what_a_folder_holds_besides_is_told(judge_stream, saved, tmp_path):
    """Records that are not judged must not be taken for judged ones."""
    folder = tmp_path / "mixed"
    write_starts(folder, 5, name="n", seed=2)
    assert "not judged" not in judge_stream(folder)[1]
    write_pairs(folder, [0.0] * 2)
    records = json.loads((folder / "n0.start.json").read_text())
    (folder / "other.start.json").write_text(json.dumps(records | {"id": "other", "box": "pcie_blackwell"}))
    code, text = judge_stream(folder)
    assert code == 0, text
    assert "1 records of box pcie_blackwell not judged" in text
    assert "4 starts of pairs not judged" in text


def test_only_the_recorded_workloads_are_asked_for(judge_folder, saved, tmp_path):
    """The folder of a narrowed run says by itself what was asked for."""
    write_starts(tmp_path / "same", 5, name="n", seed=2)
    code, text = judge_folder(tmp_path / "same")
    assert code == 0, text
    assert "concurrency" not in text
    assert "measurement failed" not in text


def test_records_are_judged_by_their_own_stack_wherever_that_is(suite, tmp_path):
    """On a laptop, or in the environment of the other stack, their baselines are the same."""
    def judge(folder, *arguments):
        given = ("-m", "perf", "--box=pcie_blackwell", f"--baselines={tmp_path / 'baselines'}")
        return suite(*given, "--deployment=baseline_bs128", "--workload=single_stream", f"--from-results={folder}",
                     *arguments)

    gpu.write_starts(tmp_path / "old", "baseline_bs128", 89.5, stack="cu128")
    code, text = judge(tmp_path / "old", "-k", "decode_rate", "--save-baseline=ten")
    assert code == 0, text
    assert [path.parent.name for path in (tmp_path / "baselines").rglob("*.json")] == ["cu128"]
    gpu.write_starts(tmp_path / "slow", "baseline_bs128", 70.0, stack="cu128", run="n")
    code, text = judge(tmp_path / "slow", "-k", "decode_rate")
    assert "stack cu128" in text
    assert code == 1, text
    assert "regression" in text
    gpu.write_starts(tmp_path / "odd", "baseline_bs128", 70.0, stack="cpu")
    code, text = judge(tmp_path / "odd")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "its records are of stack cpu, and box pcie_blackwell has cu128, cu130" in text


def test_the_commands_that_a_run_prints_ask_the_same_question(suite, saved, tmp_path):
    """With a box file and baselines of one's own, narrowed, in a folder with a space in its name."""
    box = tmp_path / "my box" / "cpu.toml"
    box.parent.mkdir()
    box.write_text((FOLDER / "cpu.toml").read_text())
    write_starts(tmp_path / "slow ones", 5, name="n", seed=3, speed=80)
    write_starts(tmp_path / "slow ones", 5, name="f", seed=4, speed=80, role="stage2")
    given = f"--box={box}", f"--baselines={tmp_path / 'baselines'}", "--deployment=baseline", "--workload=single_stream"
    code, text = suite("-m", "perf", f"--from-results={tmp_path / 'slow ones'}", *given)
    assert code == 1, text
    again = printed(text, "judge these records again")
    assert {*given} <= {*again}
    assert suite(*again)[0] == 1
    assert counts(suite(*again)[1]) == counts(text)
    code, collected = suite(*printed(text, "and measure again"), "--collect-only", "-q")
    assert code == 0, collected
    assert "test_decode_rate[baseline-single_stream]" in collected
    assert "eagle3" not in collected


def printed(text, before):
    """The arguments of the command that follows these words in a run's summary."""
    (line,) = [line for line in text.splitlines() if f"{before}: pytest " in line]
    return shlex.split(line.split(f"{before}: pytest ")[1])


def counts(text):
    """How many verdicts of each kind a run's summary counts."""
    return {line for line in text.splitlines() if re.match(r"\d+ (regression|improvement|no change|too noisy)", line)}
