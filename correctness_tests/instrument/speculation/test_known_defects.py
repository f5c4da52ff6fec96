"""A known defect covers itself and nothing else."""

from __future__ import annotations

from known_defects import beside

from fixtures.speculation.replay import Finding, Symptom

KNOWN = Finding(Symptom.REGRET, "case", "token 3 is 7")


def test_the_known_defect_alone_passes() -> None:
    assert beside([KNOWN, KNOWN], Symptom.REGRET, []) == []


def test_another_finding_beside_it_is_told() -> None:
    text = Finding(Symptom.TEXT, "case", "39 characters where the ids have 40")
    assert beside([KNOWN, text], Symptom.REGRET, []) == [f"not the known defect: {text}"]


def test_one_of_the_same_symptom_that_it_does_not_explain_is_told() -> None:
    assert beside([KNOWN], Symptom.REGRET, [KNOWN]) == [f"the known defect does not explain it: {KNOWN}"]


def test_a_defect_that_is_gone_is_told() -> None:
    (line,) = beside([], Symptom.REGRET, [])
    assert "the defect is gone" in line
