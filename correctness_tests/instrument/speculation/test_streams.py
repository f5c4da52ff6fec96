"""From the events of a stream to one answer: both forms of stream, and the right figures about a wrong one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.speculation.answers import Ask, Event, assemble, parse_answer
from fixtures.speculation.finishing import judge_finish

runs = st.lists(st.integers(1, 5), min_size=1, max_size=12)


def letters(tokens: object) -> str:
    return "".join(chr(97 + token % 26) for token in tokens)  # type: ignore[attr-defined]


def events(sizes: list[int], *, new: bool = False) -> list[Event]:
    """Of an answer of tokens 0, 1, 2 …, which come in runs of these sizes."""
    made, at = [], 0
    for size in sizes:
        first, at = (at if new else 0), at + size
        made.append(Event(list(range(first, at)), letters(range(first, at)), at))
    return made


@given(runs, st.booleans())
def test_either_form_gives_the_same_answer(sizes: list[int], new: bool) -> None:
    found = assemble(events(sizes, new=new))
    total = sum(sizes)
    assert found.ids == tuple(range(total))
    assert found.text == letters(range(total))
    assert found.runs == tuple(sizes)
    assert found.broken is None


@given(st.lists(st.integers(1, 5), min_size=3, max_size=12), st.data())
def test_a_lost_token_does_not_turn_one_form_into_the_other(sizes: list[int], data: st.DataObject) -> None:
    """One id was dropped: what came is one less than what is counted, never nearly twice as many."""
    at = data.draw(st.integers(1, len(sizes) - 1))
    made = events(sizes)
    lost = made[at].ids[-1]
    made[at:] = [Event([t for t in e.ids if t != lost], e.text, e.counted) for e in made[at:]]
    found = assemble(made)
    assert len(found.ids) == sum(sizes) - 1
    answer = parse_answer(
        {"output_ids": [], "meta_info": {"completion_tokens": sum(sizes), "finish_reason": {"type": "length"}}}, found
    )
    lines = [each.line for each in judge_finish(Ask("case", (1,), {"max_new_tokens": 90}), answer, (), letters)]
    assert f"{sum(sizes) - 1} tokens came, {sum(sizes)} are counted" in lines


def test_a_stream_that_takes_back_what_it_said_is_told() -> None:
    made = events([1, 3, 4])
    changed = [made[0], Event([0, 9, 2, 3], made[1].text, 4), made[2]]
    assert assemble(changed).broken == "event 3 takes back tokens that event 2 held"
    holed = [made[0], Event(made[1].ids, "axcd", 4), made[2]]
    assert "event 3 takes back text: it had 'axcd'" in str(assemble(holed).broken)


def test_events_may_run_ahead_of_their_count() -> None:
    """SGLang sends a reference to the ids, which may have grown by then."""
    made = events([1, 3, 4])
    ahead = [made[0], Event(list(range(6)), made[1].text, 4), made[2]]
    assert assemble(ahead).ids == tuple(range(8))
    assert assemble(ahead).runs == (1, 5, 2)


@pytest.mark.parametrize("name", ["num_retractions", "total_retractions"])
def test_retractions_are_read_in_both_releases(name: str) -> None:
    assert parse_answer({"output_ids": [5], "meta_info": {name: 2}}).retractions == 2
