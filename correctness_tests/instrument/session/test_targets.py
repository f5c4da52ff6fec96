"""Targets are shown with what the run measures anyway: no server is started for them alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.deployments import Deployment, load_box
from fixtures.records.metric import Metric
from fixtures.records.start import StartRecord
from fixtures.session.collection import measured_names
from fixtures.session.targets import TargetBoard

CPU = load_box("cpu")
RATES = {"eagle3": 60.0, "baseline": 50.0, "tp2": 200.0, "tp2_eagle3": 90.0}


class Bench:
    """A run of the whole box, and a source that says which deployments it had to start."""

    def __init__(self, asked: set[str], known: set[str]) -> None:
        self.box, self.deployments, self.asked = CPU, list(CPU.deployments.values()), asked
        self.notes: list[str] = []
        self.started: list[str] = []
        self.source = self
        self._known = known

    def stage1(self, deployment: Deployment) -> list[StartRecord]:
        if deployment.name not in self._known:
            self.started.append(deployment.name)
        rate = Metric("decode_tok_s", RATES[deployment.name], "tok/s", "timing", "higher", "single_stream", 12)
        moment = "2026-01-01T00:00:00Z"
        return [StartRecord("s", "r", "cpu", "cpu", deployment.name, "stage1", 0, moment, moment, metrics=[rate])]

    def known(self, deployment: Deployment) -> list[StartRecord]:
        return self.stage1(deployment) if deployment.name in self._known else []

    def baseline(self, deployment: str) -> None:
        return None

    def break_even(self) -> None:
        workload: Any = SimpleNamespace(name="single_stream")
        TargetBoard(self, CPU.deployment("eagle3"), workload).break_even("decode_tok_s")  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "known"), [({"eagle3"}, set()), (set(), {"eagle3", "tp2"})])
def test_a_narrowed_run_starts_no_plain_deployment_for_its_target(asked: set[str], known: set[str]) -> None:
    bench = Bench(asked, known)
    with pytest.raises(pytest.skip.Exception, match="no plain deployment was measured in this run"):
        bench.break_even()
    assert not bench.started


@pytest.mark.parametrize(
    ("asked", "known", "started"),
    [({"eagle3", "baseline"}, set(), {"eagle3", "baseline"}), ({"eagle3"}, {"baseline", "tp2"}, {"eagle3"})],
)
def test_what_the_run_measures_or_has_measured_is_what_has_to_be_reached(
    asked: set[str], known: set[str], started: set[str]
) -> None:
    bench = Bench(asked, known)
    bench.break_even()
    assert "break-even with baseline" in bench.notes[0]
    assert set(bench.started) == started


def item(deployment: str, *markers: str) -> Any:
    params = {"deployment": CPU.deployment(deployment)}
    return SimpleNamespace(
        callspec=SimpleNamespace(params=params), get_closest_marker=lambda name: name if name in markers else None
    )


def test_a_deployment_is_measured_when_one_of_its_items_is_not_skipped() -> None:
    items = [item("eagle3"), item("baseline", "skip"), item("tp2", "skip"), item("tp2")]
    assert measured_names(items) == {"eagle3", "tp2"}
