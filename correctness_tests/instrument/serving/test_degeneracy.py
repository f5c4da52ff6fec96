"""Planted loops are flagged, ordinary code and prose are not."""

from __future__ import annotations

import pytest

from fixtures.serving.workloads import load_workload
from fixtures.serving.workloads.degeneracy import MIN_OF_ONE, MIN_TOKENS, degenerate, distinct_share, period_match

NORMAL = [prompt.text for prompt in load_workload("single_stream", "cpu").prompts]

LOOPS = {
    "one token": "a" * 128,
    "short period": "ab cd " * 30,
    "one line": "        self.value = value\n" * 8,
    "late loop": NORMAL[0][:60] + "return None\n" * 10,
    "early loop": "x, y, " * 12 + NORMAL[1][:64],
    "counter": "".join(f"        self.item{index} = {index}\n" for index in range(8)),
    "two lines": "    if a:\n        return b\n" * 6,
    "no fixed period": "".join("yes " * (1 + index % 3) + "no " for index in range(20)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_planted_loops_are_flagged(name: str) -> None:
    assert degenerate(LOOPS[name].encode())


def test_planted_loops_of_other_tokens() -> None:
    assert degenerate([50_000, 7, 130_001] * 30)


def test_ordinary_code_is_not_flagged() -> None:
    flagged = [text for text in NORMAL if degenerate(text.encode()[-160:])]
    assert not flagged


def test_prose_is_not_flagged() -> None:
    text = (
        "The first start after an install compiles kernels, and its figures say nothing about the next. "
        "It is kept on file with the reason why it does not count, and another server starts in its place."
    )
    assert not degenerate(text.encode())


def test_short_answers_are_not_judged_but_for_one_token_alone() -> None:
    assert not degenerate([1, 2] * (MIN_TOKENS // 2 - 1))
    assert degenerate([1, 2] * (MIN_TOKENS // 2))
    assert not degenerate([0] * (MIN_OF_ONE - 1))
    assert degenerate([0] * MIN_OF_ONE)


def test_the_figures() -> None:
    assert period_match([1, 2, 3] * 20) == 1.0
    assert period_match(range(100)) == 0.0
    assert period_match([]) == 0.0
    assert distinct_share(range(100)) == 1.0
    assert distinct_share([1] * 57) == pytest.approx(1 / 50)
    assert distinct_share([]) == 1.0
