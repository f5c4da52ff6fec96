"""From the events of a stream to one answer: both forms of stream, and the right figures about a wrong one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.speculation.answers import Answer, Ask, Event, assemble, parse_answer
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


# --- SGLang's own events, with the logprobs of both releases.

FORMS = ["all so far", "new tokens (0.5.10)", "new tokens (0.5.23)"]
"""0.5.10 slices ids and text, and not the logprobs."""


def document(ids: list[int], start: int, end: int, form: str) -> dict[str, Any]:
    first = 0 if form == "all so far" else start
    listed = start if "0.5.23" in form else 0
    return {
        "text": "".join(f"<{token}>" for token in ids[first:end]),
        "output_ids": ids[first:end],
        "meta_info": {
            "completion_tokens": end,
            "finish_reason": {"type": "length", "length": end} if end == len(ids) else None,
            "output_token_logprobs": [[-float(n), ids[n], None] for n in range(listed, end)],
            "output_top_logprobs": [[[-float(n), ids[n], None], [-9.0, 1000, None]] for n in range(listed, end)],
        },
    }


def streamed(ids: list[int], edges: list[int], form: str) -> Answer:
    documents = [document(ids, start, end, form) for start, end in pairwise(edges)]
    return parse_answer(documents[-1], assemble([Event.of(each) for each in documents]))


@pytest.mark.parametrize("form", FORMS)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=30), cuts=st.sets(st.integers(1, 29)))
def test_the_pieces_make_the_whole(form: str, ids: list[int], cuts: set[int]) -> None:
    """Also where tokens repeat, so that new ones look like those that were there."""
    edges = sorted({0, len(ids)} | {cut for cut in cuts if cut < len(ids)})
    answer = streamed(ids, edges, form)
    whole = parse_answer(document(ids, 0, len(ids), "all so far"))
    assert answer.runs == tuple(end - start for start, end in pairwise(edges))
    assert (answer.tokens, answer.text, answer.finish) == (whole.tokens, whole.text, whole.finish)
    assert (answer.logprobs, answer.top) == (whole.logprobs, whole.top)
