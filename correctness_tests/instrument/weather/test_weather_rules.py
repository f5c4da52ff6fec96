"""Each rule with a planted case and its near miss, and what becomes of a disturbed start."""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import getsource

import pytest
from weather_cases import here, weather

from fixtures.weather import rules
from fixtures.weather.rules import AGAIN, PREFIX, Conditions, Disturbance, disturbances, why_not_counted
from fixtures.weather.series import NOT_SEEN, Spread, Weather, WorkloadWeather


def reason(bit: int, share: float = 0.5) -> WorkloadWeather:
    return replace(here(), reasons={"GPU 0": {f"{bit:#x}": share}})


def capped(**changes: float) -> WorkloadWeather:
    return replace(here(**changes), reasons={"GPU 0": {"0x4": 1.0}})


def step(name: str, most: float) -> WorkloadWeather:
    found = here()
    return replace(found, summary=found.summary | {name: Spread(0, 0, most, most / 60)})


CASES = {
    "a hog on one of two cores": ("foreign CPU work", weather(replace(here(foreign_cores=0.9), foreign={"hog": 0.9}))),
    "work in another container": ("foreign CPU work", weather(replace(here(), foreign={NOT_SEEN: 0.4}))),
    "steal time": ("steal time", weather(here(steal_cores=0.2))),
    "a video on the GPU": ("foreign GPU work", weather(here(gpu0__foreign_percent=42.0))),
    "a neighbour's server": ("foreign GPU work", weather(replace(here(), gpu_foreign={"gpu0/python (7)": 3072.0}))),
    "hardware slowdown": ("throttling", weather(reason(0x8))),
    "thermal, by software": ("throttling", weather(reason(0x20))),
    "thermal, by hardware": ("throttling", weather(reason(0x40))),
    "power brake": ("throttling", weather(reason(0x80))),
    "a lowered power limit": ("power limit", weather(capped(gpu0__limit_watts=450.0, gpu0__enforced_watts=450.0))),
    "a limit below what is set": ("power limit", weather(capped(gpu0__enforced_watts=450.0))),
    "half a link": ("PCIe link", weather(here(gpu0__link_width=8.0))),
    "memory in use before": ("GPU memory in use before", weather(memory_before={"gpu0": 3000.0})),
    "memory pressure": ("memory pressure", weather(here(psi_memory=0.1))),
    "swapping": ("swapping", weather(here(swap_pages_s=1000.0))),
    "a clock set back": ("the clock", weather(step("clock_back_s", 3.2))),
    "a client that stood still": ("the client", weather(replace(here(), lag_ms=1400.0))),
    "a client that set the pace": ("the client", weather(replace(here(), bottleneck="the client used 80% of a core"))),
    "a client that others made late": (
        "foreign CPU work", weather(replace(here(foreign_cores=0.9), bottleneck="the client's loop ran 7 ms late"))
    ),
    "a machine that slept": ("the clock", weather(step("clock_ahead_s", 60.0))),
}
NEAR_MISSES = {
    "a desktop that stands open": weather(replace(here(foreign_cores=0.06), foreign={"firefox": 0.06})),
    "a hog on one of many cores": weather(replace(here(foreign_cores=1.0), foreign={"hog": 1.0}), cores=192),
    "a little steal time": weather(here(steal_cores=0.02)),
    "a desktop on the GPU": weather(here(gpu0__foreign_percent=2.0)),
    "a monitor": weather(replace(here(), gpu_foreign={"gpu0/nv-hostengine (7)": 420.0})),
    "idle": weather(reason(0x1, 1.0)),
    "clocks that were set": weather(reason(0x2, 1.0)),
    "the power cap at its usual level": weather(capped()),
    "another limit that nobody reaches": weather(here(gpu0__limit_watts=450.0, gpu0__enforced_watts=450.0)),
    "a chassis that allows less": weather(capped(gpu0__enforced_watts=450.0), limits_before={"gpu0": 450.0}),
    "one sample of many": weather(reason(0x20, 1 / 60)),
    "the whole link": weather(here(gpu0__link_width=16.0)),
    "an x8 card": weather(here(gpu0__link_width=8.0), link_widths={"gpu0": 8}),
    "a display's memory": weather(memory_before={"gpu0": 700.0}),
    "a breath of pressure": weather(here(psi_memory=0.01)),
    "a few pages": weather(here(swap_pages_s=20.0)),
    "pressure that is our own": weather(here(psi_cpu=0.9, psi_io=0.4, load=9.0)),
    "a client's usual lag": weather(replace(here(), lag_ms=60.0)),
    "a clock that is slewed": weather(step("clock_back_s", 0.0005)),
    "nothing that could be read": Weather(2, {"single_stream": WorkloadWeather(0, {})}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_names_its_case_and_no_other_does(case: str) -> None:
    kind, found = CASES[case]
    (only,) = disturbances(found)
    assert only.kind == kind
    assert only.text.endswith("in single_stream")
    assert any(letter.isdigit() for letter in only.text), "how much"


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_a_near_miss_is_left_alone(case: str) -> None:
    assert disturbances(NEAR_MISSES[case]) == ()


def test_every_rule_has_a_case() -> None:
    assert {kind for kind, _ in CASES.values()} == {*rules.RULES}


def test_no_rule_can_see_a_rate() -> None:
    """Were a slow start set aside for being slow, nothing slow would ever be found."""
    assert {each.name for each in fields(Conditions)} == {"weather", "here"}
    assert not any(word in getsource(rules) for word in ("tok_s", "ttft", "metric", "decode"))


def test_the_worst_workload_is_named_once() -> None:
    found = weather(workloads={"a": here(steal_cores=0.2), "b": here(steal_cores=0.6), "c": here()})
    (only,) = disturbances(found)
    assert only.text == "other virtual machines took 30% of 2 cores (steal time), in b"


HOG = (Disturbance("foreign CPU work", 0.4, "foreign processes took 40% of 2 cores (hog 0.8), in a"),)
MORE = (Disturbance("foreign CPU work", 0.9, "foreign processes took 90% of 2 cores (hog 1.8), in a"),)
QUIET: tuple[Disturbance, ...] = ()


def test_a_disturbed_start_among_quiet_ones_is_no_evidence() -> None:
    for earlier in ([], [QUIET], [QUIET] * 5, [HOG, QUIET], [HOG, QUIET, HOG, QUIET]):
        assert why_not_counted(HOG, earlier) == f"{PREFIX}{HOG[0].text}"
        assert why_not_counted(QUIET, earlier) is None


def test_what_disturbs_most_starts_is_how_the_machine_is() -> None:
    """A browser that stays open must not end a run without a verdict."""
    counted = [why_not_counted(HOG, [HOG] * done) is None for done in range(6)]
    assert counted == [False] * AGAIN + [True] * (6 - AGAIN)
    assert why_not_counted(HOG, [HOG, QUIET, HOG]) is None


def test_much_more_of_the_usual_is_not_usual() -> None:
    assert why_not_counted(MORE, [HOG] * 5) is not None
    steal = (Disturbance("steal time", 0.4, "steal"),)
    assert why_not_counted(steal, [HOG] * 5) == f"{PREFIX}steal"
    assert why_not_counted((*HOG, *steal), [HOG] * 5) == f"{PREFIX}steal"
