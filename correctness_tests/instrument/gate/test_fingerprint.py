"""Environments that differ are listed, and readings that change by themselves never identify a machine."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fixtures.records.components import differing, unstable
from fixtures.records.environment import fingerprint

REAL_RUN = Path(__file__).parents[2] / "report" / "cpu_run.jsonl.gz"
HERE = {"machine": "a1", "driver": "590.48.01", "torch": "2.9.1", "gpu count": 8}


def test_equal_environments_are_comparable():
    assert differing(HERE, dict(HERE)) == []


def test_each_difference_is_listed_component_by_component():
    there = {**HERE, "driver": "595.10", "nccl": "2.28"}
    del there["torch"]
    assert [str(each) for each in differing(HERE, there)] == [
        "driver: 590.48.01 -> 595.10",
        "nccl: absent -> 2.28",
        "torch: 2.9.1 -> absent",
    ]


def test_what_could_not_be_read_never_matches():
    blind = {**HERE, "machine": "unknown"}
    assert len(differing(HERE, blind)) == 1
    assert "could not be read for the baseline and the candidate" in str(differing(blind, blind)[0])


def test_nothing_compared_with_nothing_is_not_comparable():
    assert differing({}, {})
    assert len(differing({}, HERE)) == len(HERE)


def test_a_text_is_not_a_number():
    assert differing({"gpu count": 8}, {"gpu count": "8"})


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("gpu clock MHz", 2617),
        ("sm_clock", 2617),
        ("uptime s", 86400),
        ("free memory GiB", 23.5),
        ("server pid", 4711),
        ("gpuTemperature", 41),
        ("date", "today"),
        ("port", 31010),
        ("NCCL_PORT", 1234),
        ("cache", "/tmp/flashinfer-x"),
        ("log", "dir=/var/tmp/x/log"),
        ("built", "2026-11-29T16:04:28Z"),
    ],
)
def test_an_unstable_component_is_refused_by_name_or_value(component: str, value: object):
    problems = unstable({**HERE, component: value})
    assert len(problems) == 1
    assert problems[0].startswith(component)


@pytest.mark.parametrize(
    "component", ["cuda runtime", "transport", "server.watchdog_timeout", "server.load_format", "kernel", "host cpu"]
)
def test_stable_components_are_not(component: str):
    assert unstable({component: "13.0"}) == []


def test_no_setting_of_the_installed_server_is_taken_for_a_reading():
    """SGLang names some settings like readings: `eplb_min_rebalancing_utilization_threshold` is a constant."""
    settings = pytest.importorskip("sglang.srt.server_args").ServerArgs.__annotations__
    assert len(settings) > 100
    assert unstable({f"server.{name}": 1 for name in settings}) == []


def test_a_real_run_has_a_fingerprint_that_can_be_saved():
    told = [json.loads(line) for line in gzip.decompress(REAL_RUN.read_bytes()).splitlines()]
    records = [record for record in told if record["environment"]]
    assert records
    for record in records:
        assert unstable(record["environment"]) == []


def test_the_suites_own_fingerprint_has_only_stable_components():
    first, second = fingerprint(), fingerprint()
    assert first == second
    assert [problem for problem in unstable(first) if not problem.startswith("$")] == []
