"""Does a try become the right outcome, and a change of outcome the right answer?"""

from __future__ import annotations

import itertools

import pytest

from fixtures.campaign.outcomes import ORDER, Change, Outcome, OutcomeComparison, outcome_of
from fixtures.deployments.deployment import Evidence
from fixtures.deployments.effective import activities, is_active
from fixtures.errors import MeasurementFailed
from fixtures.serving.failure import Cause

NOT_THE_APPROACH = {
    Cause.PORT,
    Cause.MODEL,
    Cause.WRONG_SERVER,
    Cause.DIFFERENT,
    Cause.UNPROVEN,
    Cause.DISK,
}


def test_order_names_every_outcome_but_not_tried() -> None:
    assert ORDER == (
        Outcome.WRONG_OUTPUT,
        Outcome.CRASHES,
        Outcome.UNSUPPORTED,
        Outcome.SLOWER,
        Outcome.NO_EFFECT,
        Outcome.IMPROVES,
    )
    assert set(ORDER) | {Outcome.NOT_TRIED} == set(Outcome)


@pytest.mark.parametrize(("recorded", "now"), list(itertools.product(ORDER, ORDER)))
def test_every_change_of_outcome(recorded: Outcome, now: Outcome) -> None:
    comparison = OutcomeComparison("pcie_ipc", "cu130", recorded, now)
    worse = ORDER.index(now) < ORDER.index(recorded)
    assert comparison.passes() is not worse
    assert comparison.passes(strict=True) is (recorded is now)
    assert (comparison.change is Change.UNBLOCKED) is (now.works and not worse and recorded is not now)
    if not worse and recorded is not now:
        assert f"set approaches.pcie_ipc.outcomes.cu130.outcome to {str(now)!r}" in str(comparison)


@pytest.mark.parametrize(
    ("recorded", "now", "said"),
    [
        (Outcome.UNSUPPORTED, Outcome.SLOWER, "UNBLOCKED"),
        (Outcome.SLOWER, Outcome.IMPROVES, "UNBLOCKED"),
        (Outcome.CRASHES, Outcome.UNSUPPORTED, "BETTER"),
        (Outcome.IMPROVES, Outcome.NO_EFFECT, "WORSE"),
        (Outcome.UNSUPPORTED, Outcome.UNSUPPORTED, "as recorded"),
        (Outcome.NOT_TRIED, Outcome.UNSUPPORTED, "first outcome"),
        (Outcome.SLOWER, Outcome.NOT_TRIED, "nothing was tried"),
    ],
)
def test_what_a_change_says(recorded: Outcome, now: Outcome, said: str) -> None:
    text = str(OutcomeComparison("mscclpp", "cu130", recorded, now))
    assert text.startswith("mscclpp on cu130: ")
    assert said in text
    assert "\n" not in text


def test_a_first_outcome_passes_unless_strict_and_trying_nothing_never_does() -> None:
    first = OutcomeComparison("mscclpp", "cu130", Outcome.NOT_TRIED, Outcome.CRASHES)
    assert (first.change, first.passes(), first.passes(strict=True)) == (Change.FIRST, True, False)
    for recorded in Outcome:
        nothing = OutcomeComparison("mscclpp", "cu130", recorded, Outcome.NOT_TRIED)
        assert not nothing.passes()
        assert nothing.change is Change.UNTESTED


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_of_failure_is_placed(cause: Cause) -> None:
    """A new cause in serving/failure must be placed here too: none falls through."""
    if cause in NOT_THE_APPROACH:
        with pytest.raises(MeasurementFailed, match="not tried") as caught:
            outcome_of(cause=cause, lines=("a line",))
        assert caught.value.lines == ("a line",)
        return
    expected = (
        Outcome.CRASHES
        if cause
        in {
            Cause.ASSERTION,
            Cause.OUT_OF_MEMORY,
            Cause.HANG,
            Cause.KILLED,
            Cause.HOOK,
            Cause.EXCEPTION,
            Cause.HTTP,
            Cause.UNKNOWN,
        }
        else Outcome.UNSUPPORTED
    )
    assert outcome_of(cause=cause) is expected


@pytest.mark.parametrize("verdict", ["improvement", "no change", "regression", None])
def test_a_silent_refusal_is_unsupported_whatever_the_speed(verdict: str | None) -> None:
    assert outcome_of(active=False, correct=True, verdict=verdict) is Outcome.UNSUPPORTED


SILENT = Evidence(refused=("disabled",), silence="each refusal writes a line", silence_since="0.5.14")
SPOKEN = Evidence(active=("workspace built",), refused=("failed",))


@pytest.mark.parametrize(
    ("log", "release", "expected"),
    [
        ("FlashInfer workspace built", "0.5.23", True),
        ("FlashInfer workspace built\nworkspace failed", "0.5.23", False),
        ("the server is fired up", "0.5.23", False),
    ],
)
def test_a_path_that_speaks_when_active_is_refused_by_its_silence(log: str, release: str, expected: bool) -> None:
    evidence = {"pcie_ipc": SPOKEN}
    assert is_active(activities(evidence, log, release)) is expected


@pytest.mark.parametrize(
    ("log", "release", "expected"),
    [
        ("the server is fired up", "0.5.14", True),
        ("the server is fired up", "0.5.13", None),
        ("fusion disabled", "0.5.14", False),
        ("", "0.5.14", None),
    ],
)
def test_silence_proves_only_where_each_refusal_writes_a_line(log: str, release: str, expected: bool | None) -> None:
    evidence = {"fusion": SILENT}
    assert is_active(activities(evidence, log, release)) is expected


def test_every_path_has_to_be_active() -> None:
    evidence = {"pcie_ipc": SPOKEN, "fusion": SILENT}
    assert is_active(activities(evidence, "workspace built", "0.5.14")) is True
    assert is_active(activities(evidence, "workspace built", "0.5.13")) is None
    assert is_active(activities(evidence, "nothing", "0.5.13")) is False
    assert is_active([]) is None


@pytest.mark.parametrize("verdict", ["improvement", "no change", "regression", "too noisy to tell", None])
def test_wrong_output_comes_before_speed(verdict: str | None) -> None:
    assert outcome_of(active=True, correct=False, verdict=verdict) is Outcome.WRONG_OUTPUT


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        ("improvement", Outcome.IMPROVES),
        ("no change", Outcome.NO_EFFECT),
        ("regression", Outcome.SLOWER),
    ],
)
def test_verdict_to_outcome(verdict: str, outcome: Outcome) -> None:
    assert outcome_of(active=True, correct=True, verdict=verdict) is outcome


@pytest.mark.parametrize(
    ("active", "correct", "verdict", "said"),
    [
        (None, True, "improvement", "active"),
        (True, None, "improvement", "correctness"),
        (True, True, "too noisy to tell", "too noisy"),
        (True, True, "no comparable baseline", "no comparable baseline"),
        (True, True, "measurement failed", "measurement failed"),
        (True, True, None, "not measured"),
    ],
)
def test_what_is_no_evidence_is_no_outcome(
    active: bool | None, correct: bool | None, verdict: str | None, said: str
) -> None:
    with pytest.raises(MeasurementFailed, match=said):
        outcome_of(active=active, correct=correct, verdict=verdict)
