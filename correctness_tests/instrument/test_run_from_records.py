"""A whole run on records alone: baselines are saved from them, and slower records are a regression."""

from __future__ import annotations

import json
import random
import re
import shlex

import campaign_cases as gpu
import pytest

from fixtures.deployments.loading import FOLDER
from fixtures.gate.paired import balanced_order
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.records.store import write_record
from fixtures.session.outcome import EXIT_MEASUREMENT_FAILED
from fixtures.session.paired import pair_note

ENVIRONMENT = {"machine": "a", "torch": "2.14.1", "workload single_stream": "w"}


def write_starts(directory, count, *, speed=100.0, kv=20000.0, role="stage1", name="s", seed=1, **changes):
    noise = random.Random(seed)
    for index in range(count):
        factor = 1 + noise.gauss(0, 0.005)
        metrics = [
            Metric("kv_tokens", kv, "tokens", "exact", "higher"),
            Metric("decode_tok_s", speed * factor, "tok/s", "timing", "higher", "single_stream", 12),
            Metric("ttft_ms", 20 * factor, "ms", "timing", "lower", "single_stream", 12),
        ]
        moment = f"2026-01-01T00:{index:02d}:00.000Z"
        values = {"environment": ENVIRONMENT, "metrics": metrics} | changes
        write_record(
            StartRecord(
                id=f"{name}{index}", run="r", box="cpu", stack="cpu", role=role, index=index,
                started_at=moment, finished_at=moment, **({"deployment": "baseline"} | values),
            ),
            directory,
        )


@pytest.fixture
def judge_records(judge_folder):
    """Judge all that a folder holds."""
    return judge_folder


@pytest.fixture
def judge_folder(judge_folder):
    """Judge the plain deployment's single stream."""
    return lambda folder, *arguments: judge_folder(
        folder, "--deployment=baseline", "--workload=single_stream", *arguments
    )


@pytest.fixture
def saved(judge_folder, tmp_path):
    """A baseline of ten starts."""
    write_starts(tmp_path / "old", 10)
    code, text = judge_folder(tmp_path / "old", "--save-baseline=ten good starts")
    path = tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json"
    assert path.exists(), text
    assert code == 0, text
    assert "no comparable baseline is no fault here" in text
    assert json.loads(path.read_text())["reason"] == "ten good starts"
    return path


def test_the_same_speed_passes_and_a_slower_one_does_not(judge_folder, saved, tmp_path):
    write_starts(tmp_path / "same", 5, name="n", seed=2)
    code, text = judge_folder(tmp_path / "same")
    assert code == 0, text
    assert text.count("no change") >= 3

    write_starts(tmp_path / "slow", 5, name="n", seed=3, speed=90)
    write_starts(tmp_path / "slow", 5, name="f", seed=4, speed=90, role="stage2")
    code, text = judge_folder(tmp_path / "slow")
    assert code == 1, text
    assert "regression" in text
    assert "confirmed by 5 fresh starts" in text

    # The table is on the terminal, with the ratio and where the records are.
    assert "0.90" in text
    assert f"--from-results={tmp_path / 'slow'}" in text


def test_another_machine_is_not_compared(judge_folder, saved, tmp_path):
    write_starts(tmp_path / "there", 5, name="n", speed=50, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_folder(tmp_path / "there")
    assert code == 0, text
    assert "no comparable baseline" in text
    assert "machine" in text


def test_an_exact_metric_is_compared_on_any_machine(judge_folder, saved, tmp_path):
    write_starts(tmp_path / "there", 1, name="n", kv=19999, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_folder(tmp_path / "there")
    assert code == 1, text
    assert "19999" in text


def test_no_baseline_is_saved_over_an_alarm(judge_folder, saved, tmp_path):
    before = saved.read_text()
    write_starts(tmp_path / "slow", 10, name="n", seed=3, speed=80)
    code, text = judge_folder(tmp_path / "slow", "--save-baseline=it is fine")
    assert code == 1, text
    assert "open alarm" in text
    assert saved.read_text() == before


def test_what_a_run_did_not_ask_about_is_judged_before_it_is_saved(judge_folder, saved, tmp_path):
    """A test file or `-k` asks about some metrics; a baseline replaces all."""
    before = saved.read_text()
    write_starts(tmp_path / "slow", 10, name="n", seed=3, speed=80)
    code, text = judge_folder(tmp_path / "slow", "--save-baseline=the capacity is right", "-k", "capacity")
    assert "kv_tokens" in text
    assert code == 1, text
    assert "single_stream/decode_tok_s: open alarm" in text
    assert saved.read_text() == before


def test_deployments_that_were_not_asked_about_are_not_saved(judge_folder, tmp_path):
    write_starts(tmp_path / "two", 10)
    write_starts(tmp_path / "two", 10, name="t", deployment="tp2")
    code, text = judge_folder(tmp_path / "two", "--save-baseline=one of them")
    assert code == 0, text
    assert [path.stem for path in (tmp_path / "baselines").rglob("*.json")] == ["baseline"]


def test_no_metric_of_a_baseline_is_lost(judge_folder, saved, tmp_path):
    more = Metric("decode_tok_s", 50.0, "tok/s", "timing", "higher", "long_prompt", 12)
    data = json.loads(saved.read_text())
    known = data["metrics"]["single_stream/decode_tok_s"]
    data["metrics"][more.key] = known | {"workload": "long_prompt"}
    data["workloads"]["long_prompt"] = "w"
    saved.write_text(json.dumps(data))
    write_starts(tmp_path / "same", 10, name="n", seed=2)
    code, text = judge_folder(tmp_path / "same", "--save-baseline=one workload")
    assert code == 1, text
    assert "long_prompt/decode_tok_s would be lost: measure all workloads" in text
    assert json.loads(saved.read_text()) == data


def test_a_stopped_run_saves_no_baseline(judge_folder, tmp_path, monkeypatch):
    (tmp_path / "stopper.py").write_text("def pytest_runtest_teardown():\n    raise KeyboardInterrupt\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write_starts(tmp_path / "ten", 10)
    code, text = judge_folder(tmp_path / "ten", "--save-baseline=ten", "-p", "stopper")
    assert code != 0, text
    assert "baseline not saved: the run was stopped before its end" in text
    assert not (tmp_path / "baselines").exists()


def test_an_exact_metric_that_varies_is_left_out_of_a_baseline(judge_folder, tmp_path):
    """Kept, it would fail every later run, whatever that measured."""
    write_starts(tmp_path / "vary", 9)
    write_starts(tmp_path / "vary", 1, name="o", kv=20001.0)
    code, text = judge_folder(tmp_path / "vary", "--save-baseline=ten")
    assert code == 0, text
    assert "left out of the baseline of baseline: kv_tokens is 20000 to 20001 in these starts" in text
    stored = json.loads((tmp_path / "baselines" / "cpu" / "cpu" / "baseline.json").read_text())
    assert "kv_tokens" not in stored["metrics"]
    assert "single_stream/decode_tok_s" in stored["metrics"]


def test_starts_of_two_environments_are_no_run(judge_folder, saved, tmp_path):
    """Two folders of one name copied into one, or a driver changed in between."""
    write_starts(tmp_path / "mixed", 3, name="n", seed=2)
    write_starts(tmp_path / "mixed", 2, name="o", seed=2, environment=ENVIRONMENT | {"machine": "b"})
    code, text = judge_folder(tmp_path / "mixed")
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "are of two environments: machine" in text


def test_too_few_starts_are_no_baseline(judge_folder, tmp_path):
    write_starts(tmp_path / "few", 3)
    code, text = judge_folder(tmp_path / "few", "--save-baseline=three")
    assert code == 1, text
    assert "too few" in text


def test_a_failed_start_fails_the_run(judge_folder, saved, tmp_path):
    failure = {"cause": "killed", "message": "baseline: the server was killed", "lines": []}
    write_starts(tmp_path / "dead", 1, name="n", status="measurement failed", failure=failure)
    code, text = judge_folder(tmp_path / "dead")
    assert code == EXIT_MEASUREMENT_FAILED, text
    assert "baseline: the server was killed" in text


def write_pairs(directory, slower, *, stage1=4, seed=5, without=None):
    """Start pairs of `baseline` with itself at HEAD; the candidate's rate is lower by these shares."""
    noise = random.Random(seed)
    order = balanced_order(4)
    for index, share in enumerate(slower):
        speed = 100 * (1 + noise.gauss(0, 0.1))
        for arm, factor in ((0, 1.0), (1, 1 - share)):
            rates = [speed * factor * (1 + noise.gauss(0, 0.01)) for _ in order]
            blocks = [
                [
                    Metric("decode_tok_s", rate, "tok/s", "timing", "higher", "single_stream", 2),
                    Metric("ttft_ms", 2000 / rate, "ms", "timing", "lower", "single_stream", 2),
                ]
                for rate in rates
            ]
            moment = f"2026-01-01T00:{index:02d}:0{arm}.000Z"
            record = StartRecord(
                id=f"p{index}{arm}", run="r", box="cpu", stack="cpu", deployment="baseline", role="paired",
                index=index, started_at=moment, finished_at=moment, environment=ENVIRONMENT, metrics=blocks[0],
                server={
                    "side": "candidate" if arm else "against HEAD",
                    "blocks": [
                        {"workload": "single_stream", "metrics": [each.to_json() for each in block]}
                        for block in blocks
                    ],
                    "pair": pair_note("baseline", arm, index, order, stage1),
                },
            )  # fmt: skip
            if record.id != without:
                write_record(record, directory)


def test_start_pairs_are_judged_again_from_their_records(judge_folder, tmp_path):
    write_pairs(tmp_path / "slow", [0.2] * 4)
    code, text = judge_folder(tmp_path / "slow")
    assert code == 1, text
    assert "regression" in text
    assert "in 4 start pairs" in text
    assert "other side" in text
    write_pairs(tmp_path / "same", [0.0] * 4)
    code, text = judge_folder(tmp_path / "same")
    assert code == 0, text
    assert "regression" not in text


def test_stage_2_of_recorded_start_pairs_decides_alone(judge_folder, tmp_path):
    suspected = [0.02, 0.06, 0.03, 0.07]
    write_pairs(tmp_path / "cleared", suspected + [0.0] * 5)
    code, text = judge_folder(tmp_path / "cleared")
    assert code == 0, text
    assert "2 no change" in text
    write_pairs(tmp_path / "confirmed", suspected + [0.05] * 5)
    code, text = judge_folder(tmp_path / "confirmed")
    assert code == 1, text
    assert "confirmed by 5 fresh start pairs" in text


def test_a_pair_with_one_side_is_refused(judge_folder, tmp_path):
    write_pairs(tmp_path / "half", [0.2] * 4, without="p20")
    code, text = judge_folder(tmp_path / "half")
    assert "start pair 3 of baseline has one side only" in text
    assert code not in (0, 10), text


def test_start_pairs_are_not_taken_for_starts(judge_folder, tmp_path):
    """Both sides of a pair lie in one folder: pooled, a regression would be averaged away."""
    write_starts(tmp_path / "pairs", 4, role="paired")
    code, text = judge_folder(tmp_path / "pairs")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "does not say which" in text
    code, text = judge_folder(tmp_path / "pairs", f"--compare={tmp_path / 'pairs'},cu128")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "start pairs" in text


def test_first_starts_that_were_discarded_leave_a_folder_of_pairs_one(judge_folder, tmp_path):
    folder = tmp_path / "pairs"
    write_pairs(folder, [0.2] * 4)
    write_starts(folder, 2, name="prime", role="prime", discarded="the first start after an install compiles kernels")
    code, text = judge_folder(folder)
    assert code == 1, text
    assert "in 4 start pairs" in text
    code, text = judge_folder(folder, f"--compare={folder},cu128")
    assert code == pytest.ExitCode.USAGE_ERROR, text
    assert "holds start pairs of --against only" in text


def test_what_a_folder_holds_besides_is_told(judge_folder, saved, tmp_path):
    """Records that are not judged must not be taken for judged ones."""
    folder = tmp_path / "mixed"
    write_starts(folder, 5, name="n", seed=2)
    assert "not judged" not in judge_folder(folder)[1]
    write_pairs(folder, [0.0] * 2)
    records = json.loads((folder / "n0.start.json").read_text())
    (folder / "other.start.json").write_text(json.dumps(records | {"id": "other", "box": "pcie_blackwell"}))
    code, text = judge_folder(folder)
    assert code == 0, text
    assert "1 records of box pcie_blackwell not judged" in text
    assert "4 starts of pairs not judged" in text


def test_only_the_recorded_workloads_are_asked_for(judge_records, saved, tmp_path):
    """The folder of a narrowed run says by itself what was asked for."""
    write_starts(tmp_path / "same", 5, name="n", seed=2)
    code, text = judge_records(tmp_path / "same")
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
